-- The time in microseconds: the one that a test gives, or that of the server, which stands still during a script.
local function time_of(given)
    if given ~= '' then
        return tonumber(given)
    end
    local now = redis.call('TIME')
    return now[1] * 1000000 + now[2]
end
