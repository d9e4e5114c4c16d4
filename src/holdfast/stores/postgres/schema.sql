-- The tables with their indexes, and the trigger, at the baseline, number 13. This file stays as it is: changes are
-- steps in `migrations`. Views are in `views.sql`, server functions in `functions`, one file each. `sql_files.py` fills
-- in names in double braces. `schema.py` runs the script with `search_path` set to the schema of the store.
--
-- Tables have plural names and are internal.
--
-- Ids are text. Times are whole microseconds since 1970, except `ready_at`, which SQL producers may set. Values of
-- users are JSON in `text` columns, because `jsonb` refuses some valid JSON.

-- Tables

create table meta (
    name text primary key,
    value text not null
);

comment on table meta is 'Internal: the number of this schema.';

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
    result text,
    slots text,
    retention bigint,
    deleted_at bigint,
    purge_at bigint
) with (
    -- Each claim, suspension and end rewrites the row. Long values are stored outside it, so that they are not copied.
    toast_tuple_target = 512,
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

comment on table runs is 'Internal. Read the view run, and insert into the view intent.';

-- The queue: one lane per type, priority and rank, over runs that no worker holds. Runs that wait or have ended are not
-- in it. The rank is a number: with a boolean, Postgres would filter and sort and not seek.
create index runs_queue on runs (type, priority, ({{rank}}), ready_at, id)
    where worker is null and ready_at is not null;

-- Held runs, for expired leases: one lane per type and priority. All of them have begun.
create index runs_held on runs (type, priority, ready_at, id)
    where worker is not null;

-- Runs whose last worker died. A claim gets at most one run whose workers died {{suspect_crashes}} times.
create index runs_crashed on runs (type, priority, ready_at, id)
    where crashes > 0 and ready_at is not null;

create unique index runs_key on runs (key)
    where key is not null;

create index runs_parent on runs (parent_id, created_at, id)
    where parent_id is not null;

-- Children that have not ended. At the end of their parent they are cancelled or abandoned.
create index runs_open_children on runs (parent_id)
    where parent_id is not null and finished_at is null;

-- Lists, newest first: by type, by the rare states, by tags, and of deleted runs.
create index runs_listed on runs (type, created_at, id);

create index runs_rare on runs (state, created_at, id)
    where state in ('failed', 'cancelled', 'blocked', 'paused', 'rolling_back');

create index runs_tags on runs using gin (tags jsonb_path_ops)
    where tags is not null;

create index runs_deleted on runs (created_at, id)
    where deleted_at is not null;

-- Pruning: runs that follow the retention of their type, and runs with a purge time of their own.
create index runs_ended on runs (type, finished_at, id)
    where finished_at is not null and purge_at is null;

create index runs_purge on runs (purge_at, id)
    where purge_at is not null;

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

comment on table entries is 'Internal. Read the view entry.';

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

comment on table inbox is 'Internal: arrivals that runs have not received yet. Read the view message.';

-- Finds the first copy of a message that is sent again before it is received.
create index inbox_message on inbox (run_id, ref)
    where kind = 'message';

-- Events in the inbox of a run, which may have withdrawn its wait since.
create index inbox_event on inbox (run_id)
    where kind = 'event';

create table receipts (
    run_id text collate "C" not null,
    message_id text collate "C" not null,
    at bigint not null,
    primary key (run_id, message_id)
);

comment on table receipts is 'Internal: the ids of received messages, kept for a day.';

create index receipts_age on receipts (at);

create table replies (
    run_id text collate "C" not null,
    message_id text collate "C" not null,
    payload text not null,
    at bigint not null,
    primary key (run_id, message_id)
);

comment on table replies is 'Internal: replies of runs to messages, kept for a day.';

create index replies_age on replies (at);

-- `place` keeps the order in which the run named its waits. `topic` is the topic of an event, or the group of a slot.
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

comment on table waits is 'Internal. Read the view wait.';

create index waits_topic on waits (topic, since, run_id)
    where topic is not null;

-- The runs that wait for a slot, in the order in which they get one: by priority and rank, which `after` holds
-- (`limits.level_of`), then by how long they have waited.
create index waits_slot on waits (topic, after, since, run_id)
    where kind = 'slot';

create table run_values (
    run_id text collate "C" not null,
    name text collate "C" not null,
    value text not null,
    primary key (run_id, name)
);

comment on table run_values is 'Internal: values that runs publish.';

-- `state`: `open` to every run, `pending` in a queue, `handed` to its holder, or `taken` by it.
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

comment on table events is 'Internal. Read the view event, and publish with the function emit.';

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

comment on table topics is 'Internal: the rules of topics.';

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

comment on table letters is 'Internal: dead letters, which could not be delivered.';

create index letters_topic on letters (topic, number);

create table audits (
    number bigint generated always as identity primary key,
    run_id text collate "C" not null,
    event text not null,
    at bigint not null,
    data text
);

comment on table audits is 'Internal. Read the view audit.';

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

comment on table workers is 'Internal. Read the view worker.';

-- Requests of SQL producers. A worker carries them out, by the same rules as every other command.
-- `by` names the user of the session: inside a `security definer` function, `current_user` is the function's owner.
create table requests (
    number bigint generated always as identity primary key,
    body text not null,
    at bigint not null default micros(clock_timestamp()),
    by text not null default ('sql:' || session_user)
);

comment on table requests is
    'Internal: requests of the functions cancel, send and emit, which a worker carries out.';

-- `per_key`, `rate` and `plan` are JSON. `rate_window` is the memory of the rate limit.
create table types (
    name text collate "C" primary key,
    runtime text not null default '',
    description text not null default '',
    is_enabled boolean not null default true,
    concurrency bigint,
    per_key text,
    rate text,
    rate_window text,
    retention bigint,
    seen_by text not null default '',
    seen_at bigint,
    plan text,
    is_limited boolean generated always as (concurrency is not null or per_key is not null or rate is not null) stored
);

comment on table types is 'Internal. Read the view type.';

-- The registrations of flows. `program` is JSON.
create table flows (
    type text collate "C" not null,
    registered_at bigint not null,
    version text not null,
    instruction_set integer not null,
    description text not null,
    by text not null,
    used_at bigint not null,
    source text not null,
    program text not null,
    primary key (type, registered_at)
);

comment on table flows is 'Internal: the registered versions of flows.';

-- The runs that have a slot, by limit.
create table slots (
    name text collate "C" not null,
    run_id text collate "C" not null,
    primary key (name, run_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

comment on table slots is 'Internal. Read the view slot.';

-- `body` is the whole schedule as JSON. The other columns are for lookups.
create table schedules (
    name text collate "C" primary key,
    type text collate "C" not null,
    next_at bigint,
    body text not null
);

comment on table schedules is 'Internal. Read the view schedule.';

-- Schedules by due time. Paused schedules are not in it.
create index schedules_due on schedules (next_at, name)
    where next_at is not null;

-- The trigger

-- Checks rows that SQL producers insert into the view `intent`. Only Python sets `start_at`, and it always does.
create trigger check_intent
    before insert on runs
    for each row
    when (new.start_at is null)
    execute function check_intent_v1();
