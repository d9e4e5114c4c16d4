-- Writes each part whose checks hold. KEYS has the partition `meta`, the counter of versions, and one key for each check
-- and each write, in order, then those of the indexes. ARGV has the beginning of all keys, the epoch, the time, the
-- channel of hints, the hint (or nothing), the version to write (0: the next one), the number of parts, and a list in
-- MessagePack, because the server and its clients read one long argument faster than many short ones. A very large
-- list comes in several pieces. It has, for each part:
--
--     <owner> <number of checks> <version>...
--     <kind of write> <number of arguments> <argument>...   any number of times, in the order of `Part`
--     .
--
-- Or, for a part with two checks that writes fields of the second partition:
--
--     + <version> <version> <number of arguments> <argument>...
--
-- The entries of indexes follow, so that each index is written once for all parts. For each index, first removals:
--
--     <R or A> <number of arguments> <list with the number of the part of each entry> <argument>...
--
-- The answer is the time, the version that was written (0 if none), and one number per part: 0 if it was written, else
-- the place of the first check that failed. The numbers are left out if all are 0. In another epoch the answer is only
-- the time.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[2] then
    return time_of(ARGV[3])
end
local prefix, channel, hint = ARGV[1], ARGV[4], ARGV[5]
local now = time_of(ARGV[3])
local version = ARGV[6] ~= '0' and ARGV[6] or nil
local has_marks = redis.call('EXISTS', prefix .. 'x') == 1
local chunk = {{chunk}}
local list = cmsgpack.unpack(ARGV[8])
for number = 9, #ARGV do
    for _, item in ipairs(cmsgpack.unpack(ARGV[number])) do
        list[#list + 1] = item
    end
end
local owner

-- The next version, taken late: a part that only frees memory is written even if the server has none left. The server
-- refuses the first write of a script that needs memory, but nothing after a write that it has done.
local function next_version()
    version = version or string.format('%.0f', redis.call('INCR', KEYS[2]))
    return version
end

local function each(command, key, first, last)
    for from = first, last, chunk do
        redis.call(command, key, unpack(list, from, math.min(from + chunk - 1, last)))
    end
end

local function mark_of(key)
    return prefix .. 'x:' .. string.sub(key, #prefix + 1)
end

local writes = {
    C = function(key)
        redis.call('UNLINK', key)
    end,
    P = function(key, first, last)
        if last - first < chunk then
            redis.call('HSET', key, '', next_version(), unpack(list, first, last))
        else
            redis.call('HSET', key, '', next_version())
            each('HSET', key, first, last)
        end
    end,
    D = function(key, first, last)
        each('HDEL', key, first, last)
        redis.call('HSET', key, '', next_version())
    end,
    E = function(key, first, last)
        each('HDEL', key, first, last)
    end,
    T = function(key)
        redis.call('HSET', key, '', next_version())
        -- Only a partition without fields may vanish.
        if redis.call('HLEN', key) == 1 then
            redis.call('PEXPIRE', key, {{touch_millis}})
        end
    end,
    X = function(key, first, last)
        for place = first, last do
            redis.call('LREM', key, 0, list[place])
        end
    end,
    L = function(key, first, last)
        each('RPUSH', key, first, last)
    end,
    -- All marks or none: two writers that each had some of them would keep each other out.
    M = function(key, first, last)
        local millis = list[first]
        for place = first + 1, last do
            local marked_by = redis.call('GET', prefix .. 'x:' .. list[place])
            if marked_by and marked_by ~= owner then
                return true
            end
        end
        for place = first + 1, last do
            redis.call('SET', prefix .. 'x:' .. list[place], owner, 'PX', millis)
        end
        if redis.call('PTTL', key) < millis then
            redis.call('SET', key, '', 'PX', millis)
        end
    end,
}

-- The place of the first check that fails, or 0.
local function failed_check(key, place, count)
    for number = 0, count - 1 do
        local name = KEYS[key + number]
        if tonumber(redis.call('HGET', name, '') or 0) ~= list[place + number] then
            return number + 1
        end
        if has_marks then
            local marked_by = redis.call('GET', mark_of(name))
            if marked_by and marked_by ~= owner then
                return number + 1
            end
        end
    end
    return 0
end

-- The owner of marks has written, so the others need not wait any longer.
local function unmark(key, count)
    for number = 0, count - 1 do
        local mark = mark_of(KEYS[key + number])
        if redis.call('GET', mark) == owner then
            redis.call('UNLINK', mark)
        end
    end
end

local answer = {now, 0}
local is_refused, is_written = false, false
local place, key = 1, 3

-- The arguments of an index that belong to parts that were written. `width` is the number of arguments of an entry.
local function written_entries(numbers, first, width)
    local values = {}
    for _, part in ipairs(numbers) do
        if answer[part + 2] == 0 then
            for number = first, first + width - 1 do
                values[#values + 1] = list[number]
            end
        end
        first = first + width
    end
    return values
end

for part = 1, tonumber(ARGV[7]) do
    local failed
    if list[place] == '+' then
        owner = ''
        failed = failed_check(key, place + 1, 2)
        local first = place + 4
        place = first + list[place + 3]
        if failed == 0 then
            writes.P(KEYS[key + 1], first, place - 1)
        end
        key = key + 2
    else
        owner = list[place]
        local first_key, count = key, list[place + 1]
        failed = failed_check(key, place + 2, count)
        place, key = place + 2 + count, key + count
        local kind = list[place]
        while kind ~= '.' do
            local first = place + 2
            place = first + list[place + 1]
            if failed == 0 and writes[kind](KEYS[key], first, place - 1) then
                failed = -1
            end
            key = key + 1
            kind = list[place]
        end
        place = place + 1
        if failed == 0 and has_marks and owner ~= '' then
            unmark(first_key, count)
        end
    end
    if failed == 0 then
        is_written = true
    else
        is_refused = true
    end
    answer[part + 2] = failed
end

local last = #list
while place < last do
    local kind, first = list[place], place + 3
    local command = kind == 'R' and 'ZREM' or 'ZADD'
    place = first + list[place + 1]
    if not is_refused then
        each(command, KEYS[key], first, place - 1)
    elseif is_written then
        local values = written_entries(list[first - 1], first, kind == 'R' and 1 or 2)
        for from = 1, #values, chunk do
            redis.call(command, KEYS[key], unpack(values, from, math.min(from + chunk - 1, #values)))
        end
    end
    key = key + 1
end
if is_written and hint ~= '' then
    redis.call('PUBLISH', channel, hint)
end
answer[2] = tonumber(version or 0)
if is_refused then
    return answer
end
return {now, answer[2]}
