-- The fields of a hash whose names do not begin with a text, as `HGETALL` returns them. The others are not read.
local function fields_without(key, beginning)
    local found = {}
    for _, field in ipairs(redis.call('HKEYS', key)) do
        if string.sub(field, 1, #beginning) ~= beginning then
            found[#found + 1] = field
            found[#found + 1] = redis.call('HGET', key, field)
        end
    end
    return found
end
