-- Extends leases, and records a heartbeat. KEYS has the partitions `meta` and `workers`, then the heads of runs. ARGV has
-- the beginning of all keys, the epoch, the time, the lease, the worker (empty: write nothing), its record, then id,
-- token and last known arrival for each run. No version changes, so a renewal never makes a checkpoint conflict.
--
-- The answer is the time, then one item per run: 0 if the lease is lost, else the number of arrivals, how it
-- is asked to stop, and the arrivals that the holder does not know. In another epoch the answer is only the time.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[2] then
    return time_of(ARGV[3])
end
local prefix, worker, record = ARGV[1], ARGV[5], ARGV[6]
local now = time_of(ARGV[3])
local until_text = whole(now + ARGV[4])
local answer = {now}
local indexes = Indexes.new(prefix)

-- The arrivals in an inbox with numbers above `seen`, by number. Some may be consumed already.
local function newer(id, seen, arrivals)
    local found = {}
    for first = seen + 1, arrivals, {{chunk}} do
        local numbers = {}
        for number = first, math.min(first + {{chunk}} - 1, arrivals) do
            numbers[#numbers + 1] = whole(number)
        end
        for _, arrival in ipairs(redis.call('HMGET', prefix .. 'i:' .. id, unpack(numbers))) do
            if arrival then
                found[#found + 1] = arrival
            end
        end
    end
    return found
end

for number = 1, #KEYS - 2 do
    local place = 4 + 3 * number
    local id, token, seen = ARGV[place], tonumber(ARGV[place + 1]), tonumber(ARGV[place + 2])
    local text = redis.call('HGET', KEYS[number + 2], 'm')
    local moving = text and moving_of(text)
    if not moving or moving[TOKEN] ~= token or moving[WORKER] == null then
        answer[number + 1] = 0
    else
        answer[number + 1] = {moving[ARRIVALS], moving[STOP] == null and '' or moving[STOP], newer(id, seen, moving[ARRIVALS])}
        if worker ~= '' then
            redis.call('HSET', KEYS[number + 2], 't', until_text)
            indexes:add('Q:' .. lane_of(moving) .. ':' .. moving[TYPE], id, until_text)
        end
    end
end
if worker ~= '' then
    indexes:write()
    local known = redis.call('HGET', KEYS[2], worker)
    local started_at = known and string.match(known, '^%d+') or whole(now)
    redis.call('HSET', KEYS[2], worker, started_at .. ' ' .. whole(now) .. ' ' .. record)
end
return answer
