-- The moving part of a run: an array in the order of `names.MOVING_FIELDS`, and what the layout in `names` makes of it.
-- The place of a field is its name in capitals.
local {{moving_names}} = {{moving_places}}
local null = cjson.null

-- A whole number as text. `tostring` and `cjson` keep only 14 digits, and a time has 16.
local function whole(number)
    return string.format('%.0f', number)
end

local NUMBERS = {{moving_numbers}}

-- The moving part that a text holds. Nothing if it cannot be read: such a run harms no other one.
local function moving_of(text)
    local is_json, moving = pcall(cjson.decode, text)
    if not is_json or type(moving) ~= 'table' or type(moving[STATE]) ~= 'string' or type(moving[TYPE]) ~= 'string' then
        return nil
    end
    for _, place in ipairs(NUMBERS) do
        if type(moving[place]) ~= 'number' then
            return nil
        end
    end
    return moving
end

local ESCAPES = {['"'] = '\\"', ['\\'] = '\\\\', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n', ['\r'] = '\\r',
    ['\t'] = '\\t'}

local function escaped(character)
    return ESCAPES[character] or string.format('\\u%04x', string.byte(character))
end

-- Most texts of a script occur many times: worker, type, states.
local known_texts = {}

-- A text as JSON, byte for byte as the rest of holdfast writes it.
local function quoted(text)
    local known = known_texts[text]
    if not known then
        known = '"' .. string.gsub(text, '[%z\1-\31"\\]', escaped) .. '"'
        known_texts[text] = known
    end
    return known
end

local function text_or_null(value)
    return value == null and 'null' or quoted(value)
end

local function whole_or_null(value)
    return value == null and 'null' or whole(value)
end

local function json_of(moving)
    return string.format('[{{moving_formats}}]', {{moving_values}})
end

-- `names.time_text`. In two halves, because `%x` may be limited to 32 bits.
local function time_text(at)
    if at < 0 then
        at = 0
    elseif at >= 16 ^ {{time_digits}} then
        return string.rep('f', {{time_digits}})
    end
    local high = math.floor(at / 4294967296)
    return string.format('%0{{time_high_digits}}x%08x', high, at - high * 4294967296)
end

-- The lane of a run that was claimed at least once, as in `names.lane_kind`: its kind and priority.
local function lane_of(moving)
    local is_held = moving[WORKER] ~= null
    local kind = is_held and 'l' or 'q0'
    if moving[CRASHES] + (is_held and 1 or 0) >= {{suspect_crashes}} then
        kind = 'z'
    end
    return kind .. ':' .. whole(moving[PRIORITY])
end

-- Gives a partition without fields a new version. Such a partition vanishes by itself.
local function touch(key, version)
    redis.call('HSET', key, '', whole(version))
    redis.call('PEXPIRE', key, {{touch_millis}})
end

-- Changes of indexes, gathered so that each index is written once. Removals come first.
local Indexes = {}
Indexes.__index = Indexes

function Indexes.new(prefix)
    return setmetatable({prefix = prefix, removed = {}, added = {}, named = {}}, Indexes)
end

function Indexes:remove(index, member)
    local members = self.removed[index]
    if not members then
        members = {}
        self.removed[index] = members
    end
    members[#members + 1] = member
end

function Indexes:add(index, member, score)
    local pairs_of = self.added[index]
    if not pairs_of then
        pairs_of = {}
        self.added[index] = pairs_of
    end
    pairs_of[#pairs_of + 1] = score or 0
    pairs_of[#pairs_of + 1] = member
end

-- Adds a name to a catalogue, once.
function Indexes:name(index, name)
    local names = self.named[index]
    if not names then
        names = {}
        self.named[index] = names
    end
    names[name] = true
end

local function in_chunks(command, key, values)
    for first = 1, #values, {{chunk}} do
        redis.call(command, key, unpack(values, first, math.min(first + {{chunk}} - 1, #values)))
    end
end

function Indexes:write()
    for index, members in pairs(self.removed) do
        in_chunks('ZREM', self.prefix .. index, members)
    end
    for index, names in pairs(self.named) do
        for name in pairs(names) do
            self:add(index, name)
        end
    end
    for index, pairs_of in pairs(self.added) do
        in_chunks('ZADD', self.prefix .. index, pairs_of)
    end
end

-- Moves a run between the indexes that depend on its state.
function Indexes:move_state(id, before, moving)
    if before ~= moving[STATE] then
        local member = time_text(moving[CREATED_AT]) .. id
        self:remove('by:' .. before .. ':' .. moving[TYPE], member)
        self:add('by:' .. moving[STATE] .. ':' .. moving[TYPE], member)
        self:name('states', moving[STATE] .. ':' .. moving[TYPE])
    end
end

-- Moves a run from a lane to another one, or to another place in the same lane. The names are `<kind>:<priority>`.
function Indexes:move_lane(id, type, before, after, ready_at)
    if before ~= after then
        self:remove('Q:' .. before .. ':' .. type, id)
    end
    self:add('Q:' .. after .. ':' .. type, id, whole(ready_at))
    self:name('L:' .. type, after)
    self:name('T', type)
end
