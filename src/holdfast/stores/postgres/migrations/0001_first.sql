-- The first schema. It is carried out with `search_path` set to the schema of the store, which functions keep.
-- Tables have plural names and are holdfast's own; the views for people have singular names and stay as they are.
-- Ids are text; times are whole microseconds since 1970, but for `ready_at`, which producers in SQL may set; values
-- of users are JSON in `text` columns: `jsonb` refuses what JSON allows.

-- Postgres puts the text of these two in the place of a call, which saves most of the time of a call. It does so only
-- if they are stable like what they are made of, have their argument once, and consist of strict functions: `least`
-- and `greatest` are not strict. An infinite instant, which only a hand can have written, is the last or the first
-- there is.
create function micros(moment timestamptz) returns bigint
    language sql stable strict parallel safe
    as $$
        select (
            numeric_smaller(numeric_larger(extract(epoch from moment), -9223372036854), 9223372036854) * 1000000
        )::bigint
    $$;

create function instant(micros bigint) returns timestamptz
    language sql stable strict parallel safe
    as $$ select timestamptz 'epoch' + int8larger(micros, -210866716800000000) * interval '1 microsecond' $$;

-- A column of JSON as JSON. A text that is none, which only a hand can have written, becomes a string: whoever decodes
-- the row sees that something else stands there, and of all other rows nothing is lost.
create function json_of(value text) returns json
    language plpgsql immutable strict parallel restricted
    as $$
begin
    return value::json;
exception
    when data_exception or program_limit_exceeded then
        return to_json(value);
end
$$;

-- A time-ordered UUID (version 7), like those the Python side makes.
create function new_id() returns text
    language sql volatile parallel safe
    as $$
        select substr(time.hex, 1, 8) || '-' || substr(time.hex, 9) || '-7' || substr(noise.hex, 14, 3)
            || '-' || substr(noise.hex, 17, 4) || '-' || substr(noise.hex, 21)
        from (select lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') as hex) as time,
            (select replace(gen_random_uuid()::text, '-', '') as hex) as noise
    $$;

create table meta (
    name text primary key,
    value text not null
);

create table runs (
    id text collate "C" primary key default new_id(),
    type text collate "C" not null,
    state text collate "C" not null default 'pending',
    priority smallint not null default 100,
    ready_at timestamptz default clock_timestamp(),
    worker text collate "C",
    token bigint not null default 0,
    claim_id text,
    crashes integer not null default 0,
    arrivals bigint not null default 0,
    attempt integer not null default 1,
    generation integer not null default 1,
    key text collate "C",
    parent_id text collate "C",
    parent_location text,
    on_close text not null default 'abandon',
    created_at bigint not null default micros(clock_timestamp()),
    start_at bigint,
    updated_at bigint not null default micros(clock_timestamp()),
    first_claimed_at bigint,
    finished_at bigint,
    suspended_at bigint,
    rollback text,
    is_pausing boolean not null default false,
    python text,
    tags jsonb,
    options text,
    error text,
    payload text not null default '{}',
    continued text,
    result text
) with (
    -- A row is rewritten at each claim, suspension and end. Long values move out of it, so that they are not copied.
    toast_tuple_target = 512,
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Runs whose workers died: of those that did so twice only one is given out at a time.
create index runs_crashed on runs (type, priority, ready_at, id)
    where crashes > 0 and ready_at is not null;

create unique index runs_key on runs (key)
    where key is not null;

create index runs_parent on runs (parent_id, created_at, id)
    where parent_id is not null;

-- Children that have not ended, for those who end with their parent or are left by it.
create index runs_open_children on runs (parent_id)
    where parent_id is not null and finished_at is null;

-- Lists, newest first: of one type after the other, of the rare states, by tags.
create index runs_listed on runs (type, created_at, id);

create index runs_rare on runs (state, created_at, id)
    where state in ('failed', 'cancelled', 'blocked', 'paused', 'rolling_back');

create index runs_tags on runs using gin (tags jsonb_path_ops)
    where tags is not null;

create table entries (
    run_id text collate "C" not null,
    location text collate "C" not null,
    kind text not null,
    state text not null,
    position bigint not null,
    attempts integer not null,
    since bigint not null,
    started_at bigint not null,
    finished_at bigint,
    retry_at bigint,
    token bigint not null,
    has_undo boolean not null,
    ref text,
    error text,
    result text,
    primary key (run_id, location)
) with (autovacuum_vacuum_cost_delay = 0);

create index entries_undo on entries (run_id)
    where has_undo;

create table inbox (
    run_id text collate "C" not null,
    number bigint not null,
    kind text not null,
    name text collate "C" not null,
    at bigint not null,
    is_exclusive boolean not null,
    ref text collate "C",
    family text,
    state text,
    error text,
    payload text,
    primary key (run_id, number)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- A message that is sent again while the first one is unread.
create index inbox_message on inbox (run_id, ref)
    where kind = 'message';

-- The events a run has and may not want any more.
create index inbox_event on inbox (run_id)
    where kind = 'event';

create table receipts (
    run_id text collate "C" not null,
    message_id text collate "C" not null,
    at bigint not null,
    primary key (run_id, message_id)
);

create index receipts_age on receipts (at);

create table replies (
    run_id text collate "C" not null,
    message_id text collate "C" not null,
    payload text not null,
    at bigint not null,
    primary key (run_id, message_id)
);

create index replies_age on replies (at);

-- `place` keeps the order in which the run named its waits; `topic` is that of an event, or the group of a slot.
create table waits (
    run_id text collate "C" not null,
    place integer not null,
    location text not null,
    kind text not null,
    since bigint not null,
    names text not null,
    deadline bigint,
    after bigint not null,
    count bigint not null,
    topic text collate "C",
    primary key (run_id, place)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

create index waits_topic on waits (topic, since, run_id)
    where topic is not null;

create table run_values (
    run_id text collate "C" not null,
    name text collate "C" not null,
    value text not null,
    primary key (run_id, name)
);

-- `state`: `open` for all, `pending` in a queue, `handed` to its holder, `taken` for good.
create table events (
    number bigint generated by default as identity primary key,
    topic text collate "C" not null,
    id text collate "C" not null,
    payload text not null,
    at bigint not null,
    reached bigint not null,
    state text not null,
    holder text,
    taken_at bigint not null
);

create unique index events_once on events (topic, id);

create index events_open on events (topic, number)
    where state = 'open';

create index events_pending on events (topic, number)
    where state = 'pending';

create index events_age on events (at)
    where state in ('open', 'pending');

create index events_taken on events (taken_at)
    where state = 'taken';

create table topics (
    name text collate "C" primary key,
    mode text not null,
    retention bigint not null,
    max_pending bigint not null
);

create table letters (
    number bigint generated by default as identity primary key,
    id text not null,
    topic text collate "C",
    run_id text,
    name text,
    payload text not null,
    at bigint not null,
    reason text not null
);

create index letters_topic on letters (topic, number);

create table audits (
    number bigint generated always as identity primary key,
    run_id text collate "C" not null,
    event text not null,
    at bigint not null,
    data text
);

create index audits_run on audits (run_id, number);

create table workers (
    id text collate "C" primary key,
    name text not null,
    host text not null,
    pid bigint not null,
    types text not null,
    concurrency bigint not null,
    started_at bigint not null,
    heartbeat_at bigint not null
);

-- What producers in SQL wish for a run that has begun. A worker carries it out, by the same rules as everything.
create table requests (
    number bigint generated always as identity primary key,
    body text not null,
    at bigint not null default micros(clock_timestamp()),
    by text not null default ('sql:' || session_user)
);

-- Rows as the values of `holdfast.core.model` that they are; made into JSON, they are those values.

create view entries_read as
    select run_id, location, kind, state, position, attempts, result,
        json_of(error) as error,
        started_at, finished_at, retry_at, ref, since, has_undo
    from entries;

create view inbox_read as
    select run_id, number, kind, name, at, payload, ref, state,
        json_of(error) as error,
        family as "group",
        is_exclusive
    from inbox;

create view waits_read as
    select run_id, place, location, kind, since,
        json_of(names) as names,
        deadline, after, count
    from waits;

create view events_read as
    select number, topic, id, payload, at, reached, state, holder, taken_at
    from events;
