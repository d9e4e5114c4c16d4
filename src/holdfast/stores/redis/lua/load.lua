-- Answers reads, all of one instant. KEYS has one key per read. ARGV has the time, then the reads in the same order:
--
--     F <count> <field>...             some fields of a partition, first its version
--     W                                all fields of a partition
--     X <beginning>                    all fields of a partition whose names do not begin with this
--     R <low> <high> <limit>           members of an index by their bytes; V: in reverse order
--     L <limit> <+inf, or empty: due>  first members of an index by score, with scores
--     S <+inf, or empty: due>          size of an index
--     G                                lines of a log
--     N <count>                        numbers of a counter; the answer is the last one
--
-- The answers are those of the commands as they are, after the time.
local now = time_of(ARGV[1])
local chunk = {{chunk}}
local place = 2
local answers = {now}

local function highest(given)
    return given ~= '' and given or string.format('%.0f', now)
end

local reads = {
    F = function(key)
        local count = tonumber(ARGV[place])
        local first, last = place + 1, place + count
        place = last + 1
        if count <= chunk then
            return redis.call('HMGET', key, '', unpack(ARGV, first, last))
        end
        local values = {redis.call('HGET', key, '')}
        for from = first, last, chunk do
            for _, value in ipairs(redis.call('HMGET', key, unpack(ARGV, from, math.min(from + chunk - 1, last)))) do
                values[#values + 1] = value
            end
        end
        return values
    end,
    W = function(key)
        return redis.call('HGETALL', key)
    end,
    X = function(key)
        local beginning = ARGV[place]
        place = place + 1
        return fields_without(key, beginning)
    end,
    R = function(key)
        local low, high, limit = ARGV[place], ARGV[place + 1], ARGV[place + 2]
        place = place + 3
        return redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit)
    end,
    V = function(key)
        local low, high, limit = ARGV[place], ARGV[place + 1], ARGV[place + 2]
        place = place + 3
        return redis.call('ZREVRANGEBYLEX', key, high, low, 'LIMIT', 0, limit)
    end,
    L = function(key)
        local limit, high = ARGV[place], highest(ARGV[place + 1])
        place = place + 2
        return redis.call('ZRANGEBYSCORE', key, '-inf', high, 'WITHSCORES', 'LIMIT', 0, limit)
    end,
    S = function(key)
        local high = highest(ARGV[place])
        place = place + 1
        return redis.call('ZCOUNT', key, '-inf', high)
    end,
    G = function(key)
        return redis.call('LRANGE', key, 0, -1)
    end,
    N = function(key)
        local count = ARGV[place]
        place = place + 1
        return count == '0' and tonumber(redis.call('GET', key) or 0) or redis.call('INCRBY', key, count)
    end,
}

for index, key in ipairs(KEYS) do
    local kind = ARGV[place]
    place = place + 1
    answers[index + 1] = reads[kind](key)
end
return answers
