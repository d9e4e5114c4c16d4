-- The tables at the baseline, number 7. This file stays as it is: changes are steps in `migrations`.
--
-- Ids are text. Times are whole microseconds since 1970. User values are JSON text.
-- The payload, tags and options of a run are in `intent`, so that an update of the run never copies its payload.

create table meta (
    name text primary key not null,
    value text not null
) without rowid;

-- `slots` is a JSON list, or null if it is empty. `rank` is `claim_order.rank_of` in SQL.
create table run (
    id text primary key not null,
    type text not null,
    state text not null,
    priority integer not null,
    ready_at integer,
    worker text,
    token integer not null,
    claim_id text,
    crashes integer not null,
    arrivals integer not null,
    attempt integer not null,
    generation integer not null,
    key text,
    parent_id text,
    parent_location text,
    on_close text not null,
    created_at integer not null,
    start_at integer not null,
    updated_at integer not null,
    first_claimed_at integer,
    finished_at integer,
    python text,
    result text,
    error text,
    rollback text,
    is_pausing integer not null default 0,
    suspended_at integer,
    slots text,
    retention integer,
    deleted_at integer,
    purge_at integer,
    rank integer
        generated always as (case when token > 0 then {{begun}} when parent_id is not null then {{child}} else {{new}} end) virtual
);

-- The queue: one lane per type, priority and rank, of runs without a lease. Runs that only wait, or have ended, are not
-- in it.
create index run_queue on run (type, priority, rank, ready_at, id)
    where worker is null and ready_at is not null;

-- Held runs by worker. Finds the expired leases of a worker, of all types, in one seek, and the runs of a dead worker.
create index run_held on run (worker, ready_at, type)
    where worker is not null;

create unique index run_key on run (key)
    where key is not null;

create index run_parent on run (parent_id, created_at, id)
    where parent_id is not null;

-- Lists, newest first: all runs, one type, one rare state, deleted runs.
create index run_created on run (created_at, id);

create index run_type on run (type, created_at, id);

create index run_rare on run (state, created_at, id)
    where state = 'failed' or state = 'cancelled' or state = 'blocked' or state = 'paused' or state = 'rolling_back';

create index run_deleted on run (created_at, id)
    where deleted_at is not null;

-- Pruning: runs that the retention of their type removes, and runs with their own purge time.
create index run_ended on run (type, finished_at, id)
    where finished_at is not null and purge_at is null;

create index run_purge on run (purge_at, id)
    where purge_at is not null;

create table intent (
    run_id text primary key not null,
    payload text not null,
    tags text,
    options text,
    continued text
) without rowid;

-- `created_at` is copied from the run, so that a search by tag reads newest first, like every other list.
create table tag (
    name text not null,
    value text not null,
    created_at integer not null,
    run_id text not null,
    primary key (name, value, created_at, run_id)
) without rowid;

create table entry (
    run_id text not null,
    location text not null,
    kind text not null,
    state text not null,
    position integer not null,
    attempts integer not null,
    result text,
    error text,
    started_at integer not null,
    finished_at integer,
    retry_at integer,
    ref text,
    token integer not null,
    since integer not null default 0,
    has_undo integer not null default 0,
    primary key (run_id, location)
) without rowid;

-- Finds entries with an undo, which a cancelled run has to roll back.
create index entry_undo on entry (run_id)
    where has_undo = 1;

create table inbox (
    run_id text not null,
    number integer not null,
    kind text not null,
    name text not null,
    at integer not null,
    payload text,
    ref text,
    state text,
    error text,
    family text,
    is_exclusive integer not null default 0,
    primary key (run_id, number)
) without rowid;

-- Finds a duplicate of a message that the run has not received yet.
create index inbox_message on inbox (run_id, ref)
    where kind = 'message';

-- Finds an event that has already arrived for a wait.
create index inbox_event on inbox (run_id, name)
    where kind = 'event';

-- Finds the queued events in the inbox of a run.
create index inbox_exclusive on inbox (run_id)
    where is_exclusive = 1;

create table receipt (
    run_id text not null,
    message_id text not null,
    at integer not null,
    primary key (run_id, message_id)
) without rowid;

-- Receipts and replies are pruned by age, across runs.
create index receipt_age on receipt (at);

create table reply (
    run_id text not null,
    message_id text not null,
    payload text not null,
    at integer not null,
    primary key (run_id, message_id)
) without rowid;

create index reply_age on reply (at);

-- `place` keeps the order in which the run named its waits. `topic` is the topic of an event, or the group or limit
-- whose slot the run waits for.
create table wait (
    run_id text not null,
    place integer not null,
    location text not null,
    kind text not null,
    since integer not null,
    names text not null,
    deadline integer,
    after integer not null,
    topic text,
    count integer not null default 0,
    primary key (run_id, place)
) without rowid;

create index wait_topic on wait (topic, run_id)
    where topic is not null;

-- Runs that wait for an event, longest wait first.
create index wait_turn on wait (topic, since, run_id)
    where kind = 'event';

-- Runs that wait for a slot, in the order in which they get one: by priority and rank, then longest wait first. `after`
-- holds priority and rank (`limits.level_of`).
create index wait_slot on wait (topic, after, since, run_id)
    where kind = 'slot';

create table value (
    run_id text not null,
    name text not null,
    value text not null,
    primary key (run_id, name)
) without rowid;

-- `autoincrement`: a number is never reused, not even after the event has expired.
-- `state`: `open` (for all runs), `pending` (in a queue), `handed` (in the inbox of its holder), `taken` (consumed).
-- `expires_at` is null until the pruner looks at the event, and again after a change to the rules of its topic.
create table event (
    number integer primary key autoincrement,
    topic text not null,
    id text not null,
    payload text not null,
    at integer not null,
    reached integer not null,
    state text not null default 'open',
    holder text,
    expires_at integer
);

create unique index event_once on event (topic, id);

create index event_topic on event (topic, at);

create index event_expiry on event (expires_at);

create index event_pending on event (topic, number)
    where state = 'pending';

create table topic (
    name text primary key not null,
    mode text not null,
    retention integer not null,
    max_pending integer not null
) without rowid;

create table letter (
    number integer primary key autoincrement,
    id text not null,
    topic text,
    run_id text,
    name text,
    payload text not null,
    at integer not null,
    reason text not null
);

create index letter_topic on letter (topic, number);

create table audit (
    number integer primary key,
    run_id text not null,
    event text not null,
    at integer not null,
    data text
);

create index audit_run on audit (run_id);

create table worker (
    id text primary key not null,
    name text not null,
    host text not null,
    pid integer not null,
    types text not null,
    concurrency integer not null,
    started_at integer not null,
    heartbeat_at integer not null
) without rowid;

-- `per_key`, `rate` and `plan` are JSON. `rate_window` is the state of the rate limit, as JSON.
create table type (
    name text primary key not null,
    runtime text not null,
    description text not null,
    is_enabled integer not null,
    concurrency integer,
    per_key text,
    rate text,
    rate_window text,
    retention integer,
    seen_by text not null,
    seen_at integer,
    plan text
) without rowid;

-- The registrations of flows. The texts are the last columns, so that a list does not read their pages.
create table flow (
    type text not null,
    registered_at integer not null,
    version text not null,
    instruction_set integer not null,
    description text not null,
    by text not null,
    used_at integer not null,
    source text not null,
    program text not null,
    primary key (type, registered_at)
);

-- The runs that hold a slot, by limit.
create table slot (
    name text not null,
    run_id text not null,
    primary key (name, run_id)
) without rowid;

-- `body` is the whole schedule as JSON. The other columns exist for lookups.
create table schedule (
    name text primary key not null,
    type text not null,
    next_at integer,
    body text not null
) without rowid;

-- Schedules by their next time, earliest first. A paused schedule is not in it.
create index schedule_due on schedule (next_at, name)
    where next_at is not null;
