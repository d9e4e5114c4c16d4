-- Leases due runs to a worker, in the order of `core.claim_order`. `operations.leases.choose` has the same choice in
-- Python, and `rules.claimed` says what a claim changes of a run.
--
-- KEYS has the partition `meta`; the others depend on what is found. ARGV has the beginning of all keys, the epoch, the
-- time, the id of the claim, the worker, the maximum number of runs, the lease, the version of Python, 1 if a suspect
-- may be leased, 1 if the claim is repeated, the two counts of `Shares`, and then the types.
--
-- The answer is the time, the version that was written (0 if none), when the next run is ready (or nothing), the types
-- with limits of which a run is due, the runs (id, head, history and inbox of each), and the ids of due runs that cannot
-- be read. If such types are due, nothing is leased. In another epoch the answer is only the time.
--
-- The cost depends on the number of lanes of the types and on the number of runs that are leased, on nothing else.
local noted = redis.call('HMGET', KEYS[1], 'epoch', 'base')
if noted[1] ~= ARGV[2] then
    return time_of(ARGV[3])
end
local prefix = ARGV[1]
local now = time_of(ARGV[3])
local claim_id, worker, limit, python = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[8]
local lease_end = now + ARGV[7]
local may_suspect, is_repeat = ARGV[9] == '1', ARGV[10] == '1'
local since_new, since_child = tonumber(ARGV[11]), tonumber(ARGV[12])
local FIRST_TYPE = 13
local BEGUN, CHILD, NEW = {{begun}}, {{child}}, {{new}}
local RANK_OF = {q0 = BEGUN, l = BEGUN, z = BEGUN, q1 = CHILD, q2 = NEW}
local share_full = {{share}} - 1
local base = tonumber(noted[2] or 0)
local version = 0
local held_by_worker = prefix .. 'H:' .. worker
-- Runs that cannot be read. They have left their lanes, and the caller blocks them.
local odd = {}

-- The history of a run without the entries for people, which may be large. Only flows have such entries.
local function leased_history(key)
    if redis.call('HEXISTS', key, '{{flow_location}}') == 0 then
        return redis.call('HGETALL', key)
    end
    return fields_without(key, '{{people_prefix}}')
end

-- The answer with won runs: id and moving part of each.
local function answered(won, next_ready, limited)
    local runs = {}
    for number, run in ipairs(won) do
        local id = run.id
        local inbox = run.moving[ARRIVALS] > 0 and redis.call('HGETALL', prefix .. 'i:' .. id) or {}
        runs[number] = {id, redis.call('HGETALL', prefix .. 'r:' .. id), leased_history(prefix .. 'h:' .. id), inbox}
    end
    return {now, version, next_ready or false, limited or {}, runs, odd}
end

-- The runs that an earlier attempt at this claim has won. Its answer was lost.
local function won_before()
    local offered, won = {}, {}
    for place = FIRST_TYPE, #ARGV do
        offered[ARGV[place]] = true
    end
    for _, id in ipairs(redis.call('ZRANGE', held_by_worker, 0, -1)) do
        local text = redis.call('HGET', prefix .. 'r:' .. id, 'm')
        local moving = text and moving_of(text)
        if moving and moving[CLAIM_ID] == claim_id and moving[WORKER] == worker and offered[moving[TYPE]] then
            won[#won + 1] = {id = id, moving = moving}
        end
    end
    return won
end

-- True unless the server compares texts by the rules of a language: those have capitals beside small letters, and skip
-- hyphens.
local is_bytewise = 'B' < 'a' and 'a-b' < 'aa'

-- Bytes decide the order of ids.
local function is_before(one, other)
    if one.score ~= other.score then
        return one.score < other.score
    end
    local a, b = one.id, other.id
    if is_bytewise then
        return a < b
    end
    for place = 1, math.min(#a, #b) do
        local x, y = string.byte(a, place), string.byte(b, place)
        if x ~= y then
            return x < y
        end
    end
    return #a < #b
end

-- Lanes: the claimable runs of one type, kind and priority, by ready time.

-- The types of the request that have lanes.
local function types_with_lanes()
    local found = {}
    for first = FIRST_TYPE, #ARGV, {{chunk}} do
        local last = math.min(first + {{chunk}} - 1, #ARGV)
        for number, score in ipairs(redis.call('ZMSCORE', prefix .. 'T', unpack(ARGV, first, last))) do
            if score then
                found[#found + 1] = ARGV[first + number - 1]
            end
        end
    end
    return found
end

-- The lanes of a type that have runs. The names of empty ones are removed.
local function lanes_of(type, is_limited, is_marked)
    local lanes = {}
    for _, name in ipairs(redis.call('ZRANGE', prefix .. 'L:' .. type, 0, -1)) do
        local key = prefix .. 'Q:' .. name .. ':' .. type
        local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
        if first[1] then
            local kind, priority = string.match(name, '^(%w+):(-?%d+)$')
            lanes[#lanes + 1] = {key = key, name = name, type = type, kind = kind, priority = tonumber(priority),
                first = tonumber(first[2]), is_limited = is_limited, is_marked = is_marked, page = {}, place = 1,
                offset = 0}
        else
            redis.call('ZREM', prefix .. 'L:' .. type, name)
        end
    end
    if #lanes == 0 then
        redis.call('ZREM', prefix .. 'T', type)
    end
    return lanes
end

local function all_lanes()
    local types = types_with_lanes()
    local lanes = {}
    local has_marks = redis.call('EXISTS', prefix .. 'x') == 1
    for first = 1, #types, {{chunk}} do
        local last = math.min(first + {{chunk}} - 1, #types)
        for number, rule in ipairs(redis.call('HMGET', prefix .. 'ruled', unpack(types, first, last))) do
            if rule ~= 'off' then
                local type = types[first + number - 1]
                local is_marked = has_marks and redis.call('EXISTS', prefix .. 'x:g:' .. type) == 1
                for _, lane in ipairs(lanes_of(type, rule == 'limited', is_marked)) do
                    lanes[#lanes + 1] = lane
                end
            end
        end
    end
    return lanes
end

-- Moves a lane to its next due run. False if there is none. A run that does not belong into the lane is removed from it.
local function advance(lane, count)
    while true do
        if lane.place > #lane.page then
            lane.page = redis.call('ZRANGEBYSCORE', lane.key, '-inf', whole(now), 'WITHSCORES', 'LIMIT', lane.offset, count)
            lane.place = 1
            if #lane.page == 0 then
                return false
            end
        end
        local id, score = lane.page[lane.place], lane.page[lane.place + 1]
        lane.place = lane.place + 2
        local fields = redis.call('HMGET', prefix .. 'r:' .. id, 'm', 't')
        local moving, ready = fields[1] and moving_of(fields[1]), tonumber(fields[2] or nil)
        if not (moving and ready) then
            redis.call('ZREM', lane.key, id)
            lane.is_changed = true
            if (fields[1] and not moving) or (fields[2] and not ready) then
                odd[#odd + 1] = id
            end
        elseif ready > now then
            redis.call('ZADD', lane.key, fields[2], id)
            lane.is_changed = true
        else
            lane.offset = lane.offset + 1
            lane.id, lane.score, lane.moving = id, tonumber(score), moving
            return true
        end
    end
end

local function is_due(lane)
    return lane.first <= now and not lane.is_marked and (lane.kind ~= 'z' or may_suspect)
end

-- The types with limits of which a run is due.
local function limited_types(lanes)
    local found, is_known = {}, {}
    for _, lane in ipairs(lanes) do
        if lane.is_limited and is_due(lane) and not is_known[lane.type] and advance(lane, 1) then
            is_known[lane.type] = true
            found[#found + 1] = lane.type
        end
    end
    return found
end

-- The choice

-- Inserts a lane into a list of lanes that is sorted by their next runs, the first one last.
local function insert(lanes, lane)
    local low, high = 1, #lanes + 1
    while low < high do
        local middle = math.floor((low + high) / 2)
        if is_before(lanes[middle], lane) then
            high = middle
        else
            low = middle + 1
        end
    end
    table.insert(lanes, low, lane)
end

local function next_rank(ranks, new, child)
    local has_begun, has_child, has_new = #ranks[BEGUN] > 0, #ranks[CHILD] > 0, #ranks[NEW] > 0
    if has_new and (not (has_begun or has_child) or new >= share_full) then
        return NEW
    end
    if has_child and (not has_begun or child >= share_full) then
        return CHILD
    end
    return has_begun and BEGUN or nil
end

local function without_suspects(lanes)
    local others = {}
    for _, lane in ipairs(lanes) do
        if lane.kind ~= 'z' then
            others[#others + 1] = lane
        end
    end
    return others
end

-- Adds runs of one priority to those that are chosen.
local function choose(lanes, chosen)
    local ranks = {[BEGUN] = {}, [CHILD] = {}, [NEW] = {}}
    -- Each lane is read in pages, so that many lanes together are not read much further than needed.
    local page = math.min(limit - #chosen, 4 + math.ceil((limit - #chosen) / #lanes))
    for _, lane in ipairs(lanes) do
        if (lane.kind ~= 'z' or may_suspect) and advance(lane, page) then
            insert(ranks[RANK_OF[lane.kind]], lane)
        end
    end
    local new, child = since_new, since_child
    while #chosen < limit do
        local rank = next_rank(ranks, new, child)
        if not rank then
            return
        end
        local lane = table.remove(ranks[rank])
        chosen[#chosen + 1] = {id = lane.id, moving = lane.moving, lane = lane}
        lane.is_changed = true
        if lane.kind == 'z' then
            may_suspect = false
            ranks[BEGUN] = without_suspects(ranks[BEGUN])
        elseif #chosen < limit and advance(lane, page) then
            insert(ranks[rank], lane)
        end
        if rank == NEW then
            new = 0
        else
            new = math.min(share_full, new + 1)
            child = rank == CHILD and 0 or math.min(share_full, child + 1)
        end
    end
end

local function chosen_of(lanes)
    local by_priority, priorities, chosen = {}, {}, {}
    for _, lane in ipairs(lanes) do
        if is_due(lane) then
            if not by_priority[lane.priority] then
                by_priority[lane.priority] = {}
                priorities[#priorities + 1] = lane.priority
            end
            table.insert(by_priority[lane.priority], lane)
        end
    end
    table.sort(priorities)
    for _, priority in ipairs(priorities) do
        if #chosen < limit then
            choose(by_priority[priority], chosen)
        end
    end
    return chosen
end

-- The leases

local ROUTINE = {{routine}}

-- Removes surplus routine facts of a run, as `audit.kept` does.
local function trim(key)
    local routine = {}
    for _, line in ipairs(redis.call('LRANGE', key, 0, -1)) do
        local is_json, fact = pcall(cjson.decode, line)
        if is_json and type(fact) == 'table' and ROUTINE[fact.event] then
            routine[#routine + 1] = line
        end
    end
    for place = 1, #routine - {{routine_kept}} do
        redis.call('LREM', key, 1, routine[place])
    end
end

local worker_json = quoted(worker)

-- `rules.claimed` and `audit.of_claim`.
local function hold(run, indexes)
    local id, moving = run.id, run.moving
    local lost, state = moving[WORKER], moving[STATE]
    local is_crash = lost ~= null
    moving[STATE] = moving[ROLLBACK] == null and 'running' or 'rolling_back'
    moving[WORKER], moving[CLAIM_ID] = worker, claim_id
    -- The token of a first claim is the first one of its epoch, and no other token is (`claim_order.rank_before`).
    moving[TOKEN] = (moving[TOKEN] == 0 and base or math.max(moving[TOKEN], base + 1)) + 1
    if is_crash then
        moving[CRASHES] = moving[CRASHES] + 1
    end
    if is_crash or state == 'blocked' then
        moving[ATTEMPT] = moving[ATTEMPT] + 1
    end
    if moving[FIRST_CLAIMED_AT] == null then
        moving[FIRST_CLAIMED_AT] = now
    end
    if moving[PYTHON] == null or moving[PYTHON] == '' then
        moving[PYTHON] = python
    end
    moving[UPDATED_AT] = now
    redis.call('HSET', prefix .. 'r:' .. id, '', whole(version), 'm', json_of(moving), 't', whole(lease_end))

    local data = '"worker":' .. worker_json .. ',"token":' .. whole(moving[TOKEN])
    if is_crash then
        data = data .. ',"crashes":' .. whole(moving[CRASHES]) .. ',"lost":' .. quoted(lost)
    end
    local log = prefix .. 'a:' .. id
    redis.call('RPUSH', log, '{"event":"claimed","at":' .. whole(now) .. ',"data":{' .. data ..
        '}}')
    if moving[TOKEN] % {{trim_every}} == 0 then
        trim(log)
    end

    indexes:move_state(id, state, moving)
    indexes:move_lane(id, moving[TYPE], run.lane.name, lane_of(moving), lease_end)
    if is_crash and lost ~= worker then
        indexes:remove('H:' .. lost, id)
    end
    indexes:add('H:' .. worker, id)
end

local function lease(chosen)
    version = redis.call('INCR', prefix .. '#')
    local indexes = Indexes.new(prefix)
    local types = {}
    for _, run in ipairs(chosen) do
        hold(run, indexes)
        types[run.moving[TYPE]] = true
    end
    indexes:name('holders', worker)
    indexes:write()
    touch(prefix .. 'n:' .. worker, version)
    for type in pairs(types) do
        touch(prefix .. 'g:' .. type, version)
    end
    for _, run in ipairs(chosen) do
        local lane = run.lane
        if not lane.is_over and redis.call('EXISTS', lane.key) == 0 then
            lane.is_over = true
            redis.call('ZREM', prefix .. 'L:' .. lane.type, lane.name)
        end
    end
end

-- When the next run is ready

-- The ready time of the first run in a lane that this worker does not hold, as far as the first runs show.
local function ready_time(lane)
    if lane.kind ~= 'l' and lane.kind ~= 'z' then
        if lane.is_changed then
            lane.first = tonumber(redis.call('ZRANGE', lane.key, 0, 0, 'WITHSCORES')[2])
        end
        return lane.first
    end
    local members, scores = {}, {}
    for place, value in ipairs(redis.call('ZRANGE', lane.key, 0, {{own_runs}} - 1, 'WITHSCORES')) do
        table.insert(place % 2 == 1 and members or scores, value)
    end
    if #members == 0 then
        return nil
    end
    for number, is_own in ipairs(redis.call('ZMSCORE', held_by_worker, unpack(members))) do
        if not is_own then
            return tonumber(scores[number])
        end
    end
    return #members == {{own_runs}} and tonumber(scores[#scores]) or nil
end

local function next_ready_of(lanes)
    local earliest
    for _, lane in ipairs(lanes) do
        local ready = ready_time(lane)
        if ready and lane.is_marked then
            ready = math.max(ready, now + {{mark_micros}})
        end
        if ready and (not earliest or ready < earliest) then
            earliest = ready
        end
    end
    return earliest
end

if is_repeat then
    local won = won_before()
    if #won > 0 then
        return answered(won, now)
    end
end
if limit <= 0 then
    return answered({}, now)
end
local lanes = all_lanes()
local limited = limited_types(lanes)
if #limited > 0 then
    return answered({}, now, limited)
end
local chosen = chosen_of(lanes)
if #chosen > 0 then
    lease(chosen)
end
if #chosen >= limit then
    return answered(chosen, now)
end
return answered(chosen, next_ready_of(lanes))
