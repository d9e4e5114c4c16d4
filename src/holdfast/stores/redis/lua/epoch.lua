-- Begins a new epoch if the server is not the one that the namespace knows, and makes the leases of the old epoch void.
--
-- A server that was restarted, or a replica that was promoted, may have forgotten writes that it had confirmed. Then a
-- token or a version could be given twice. So tokens and versions leap ahead, and all leases end. A call voids a
-- limited number of leases, so that it does not stop the server. Clients repeat it until it is done, and do nothing else
-- before.
--
-- KEYS has the partition `meta`, the counter of versions, the log of epochs, and the counters that leap too. ARGV has the
-- beginning of all keys, the time, the channel of hints, the maximum number of leases to void, the epoch that the client
-- knows with the highest version that was confirmed to it in that epoch; then the noted epoch, run id and witness as the
-- client has read them, 1 if it has recognized the server, and the run id and witness to note.
--
-- The answer is the epoch, 1 if it is complete, the number of leases that became void so far, and the number of versions
-- that this client knows to be lost. It is only 0 if something else is noted by now.
local prefix = ARGV[1]
local now = time_of(ARGV[2])
local limit = tonumber(ARGV[4])
local known_epoch, known_version = tonumber(ARGV[5]), tonumber(ARGV[6])
local is_same, run_id, witness = ARGV[10] == '1', ARGV[11], ARGV[12]
local meta, versions, log = KEYS[1], KEYS[2], KEYS[3]
local noted = redis.call('HMGET', meta, 'epoch', 'server', 'witness', 'base', 'voiding', 'released')
local epoch, base = tonumber(noted[1] or 0), tonumber(noted[4] or 0)
local is_voiding, released = noted[5], tonumber(noted[6] or 0)

if (noted[1] or '0') ~= ARGV[7] or (noted[2] or '') ~= ARGV[8] or (noted[3] or '') ~= ARGV[9] then
    return 0
end

local function line_of(line)
    return string.format('{"at":%.0f,"from":%.0f,"to":%.0f,"released":%.0f,"version":%.0f,"lost":%.0f}',
        line.at, line.from, line.to, line.released, line.version, line.lost)
end

local function append_line(from, to, version)
    redis.call('RPUSH', log, line_of({at = now, from = from, to = to, released = 0, version = version, lost = 0}))
    redis.call('LTRIM', log, -{{epochs_kept}}, -1)
end

-- Notes in the log how many versions are lost, as far as the clients have reported. The epoch after the client's own one
-- began with a version below the highest one that was confirmed to the client. Without any log, the namespace was
-- emptied after the client's epoch, and a client that did not know that epoch has begun this one.
local function note_lost()
    if known_epoch > 0 and known_epoch < epoch and redis.call('EXISTS', log) == 0 then
        append_line(known_epoch, epoch, 0)
    end
    local length = redis.call('LLEN', log)
    for place = 0, length - 1 do
        local line = cjson.decode(redis.call('LINDEX', log, place))
        if line.from == known_epoch and known_version > line.version then
            local lost = known_version - line.version
            if lost > line.lost then
                line.lost = lost
                redis.call('LSET', log, place, line_of(line))
            end
            return lost
        end
    end
    return 0
end

local function note_released()
    local line = cjson.decode(redis.call('LINDEX', log, -1))
    line.released = released
    redis.call('LSET', log, -1, line_of(line))
end

if is_same then
    redis.call('HSET', meta, 'server', run_id, 'witness', witness)
    if not is_voiding then
        return {epoch, 1, released, note_lost()}
    end
else
    local before = tonumber(redis.call('GET', versions) or 0)
    local version = redis.call('INCRBY', versions, epoch > 0 and {{version_leap}} or 1)
    if epoch > 0 then
        base = base + {{token_leap}}
        for place = 4, #KEYS do
            if redis.call('EXISTS', KEYS[place]) == 1 then
                redis.call('INCRBY', KEYS[place], {{number_leap}})
            end
        end
    end
    -- The number is also a time, so that it is new even if the namespace was emptied.
    local next_epoch = math.max(math.max(epoch, known_epoch) + 1, time_of(''))
    local last_epoch = epoch > 0 and epoch or known_epoch -- a namespace that was emptied has forgotten its epoch
    if last_epoch > 0 then
        append_line(last_epoch, next_epoch, before)
    end
    epoch, released = next_epoch, 0
    redis.call('HSET', meta, '', whole(version), 'epoch', whole(epoch), 'base', whole(base), 'server', run_id, 'witness',
        witness, 'voiding', 1, 'released', 0)
end

local version = redis.call('INCR', versions)
local indexes = Indexes.new(prefix)
local types = {}

-- A moving part as JSON, whatever its fields hold: a migration begins an epoch before it changes them.
local function unchanged_json(moving)
    local parts = {}
    for place, value in ipairs(moving) do
        if value == null or type(value) == 'boolean' then
            parts[place] = value == null and 'null' or tostring(value)
        else
            parts[place] = type(value) == 'number' and whole(value) or quoted(value)
        end
    end
    return '[' .. table.concat(parts, ',') .. ']'
end

-- Releases a run without charging a crash. The token grows: else the checkpoint of the old holder would seem to be
-- written already (`rules.judge`). A requested pause stays requested: the next holder obeys it.
local function release(id, worker)
    local head = prefix .. 'r:' .. id
    local text = redis.call('HGET', head, 'm')
    local moving = text and moving_of(text)
    if not moving or moving[WORKER] ~= worker then
        return
    end
    local state, lane, type = moving[STATE], lane_of(moving), moving[TYPE]
    moving[STATE] = moving[ROLLBACK] == null and 'pending' or 'rolling_back'
    moving[TOKEN] = math.max(moving[TOKEN], base) + 1
    moving[WORKER], moving[CLAIM_ID] = null, null
    moving[UPDATED_AT] = now
    redis.call('HSET', head, '', whole(version), 'm', unchanged_json(moving), 't', whole(now))
    redis.call('RPUSH', prefix .. 'a:' .. id, '{"event":"released","at":' .. whole(now) ..
        ',"data":{"worker":' .. quoted(worker) ..
        ',"reason":"the server was restarted or replaced, or the store was migrated"}}')
    indexes:move_state(id, state, moving)
    indexes:move_lane(id, type, lane, lane_of(moving), now)
    types[type] = true
    released = released + 1
end

local left = limit
for _, worker in ipairs(redis.call('ZRANGE', prefix .. 'holders', 0, limit)) do
    local held = prefix .. 'H:' .. worker
    local ids = left > 0 and redis.call('ZRANGE', held, 0, left - 1) or {}
    for _, id in ipairs(ids) do
        release(id, worker)
        indexes:remove('H:' .. worker, id)
    end
    left = left - math.max(#ids, 1)
    if redis.call('ZCARD', held) == #ids then
        indexes:remove('holders', worker)
    end
end
indexes:write()
for type in pairs(types) do
    touch(prefix .. 'g:' .. type, version)
end

local is_done = redis.call('EXISTS', prefix .. 'holders') == 0
if is_done then
    redis.call('HDEL', meta, 'voiding')
    -- A message without a text: anything may have changed.
    redis.call('PUBLISH', ARGV[3], '')
end
redis.call('HSET', meta, 'released', whole(released))
if redis.call('EXISTS', log) == 1 then
    note_released()
end
return {epoch, is_done and 1 or 0, released, known_epoch > 0 and note_lost() or 0}
