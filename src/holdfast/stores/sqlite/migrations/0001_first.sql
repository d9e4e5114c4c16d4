-- The first schema. Ids are text, times are whole microseconds since 1970, values of users are JSON text.
-- What a run was started with stands apart in `intent`, so that moving a run never copies its payload.

create table meta (
    name text primary key not null,
    value text not null
) without rowid;

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
    error text
);

-- The queue: one lane per type and priority, over runs nobody holds. Runs that wait or have ended are not in it.
create index run_queue on run (type, priority, ready_at, id)
    where worker is null and ready_at is not null;

-- Held runs by holder: expired leases, and what a dead worker left.
create index run_held on run (worker, type, ready_at)
    where worker is not null;

create unique index run_key on run (key)
    where key is not null;

create index run_parent on run (parent_id, created_at, id)
    where parent_id is not null;

-- Lists, newest first: of everything, of one type, of one of the rare states.
create index run_created on run (created_at, id);

create index run_type on run (type, created_at, id);

create index run_rare on run (state, created_at, id)
    where state = 'failed' or state = 'cancelled' or state = 'blocked' or state = 'paused' or state = 'rolling_back';

create table intent (
    run_id text primary key not null,
    payload text not null,
    tags text
) without rowid;

-- `created_at` is the run's, so that a search by tag is read newest first like every other list.
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
    primary key (run_id, location)
) without rowid;

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
    primary key (run_id, number)
) without rowid;

-- A message that is sent again while the first one is unread.
create index inbox_message on inbox (run_id, ref)
    where kind = 'message';

-- The event a wait already has.
create index inbox_event on inbox (run_id, name)
    where kind = 'event';

create table receipt (
    run_id text not null,
    message_id text not null,
    at integer not null,
    primary key (run_id, message_id)
) without rowid;

create index receipt_age on receipt (run_id, at);

-- `place` keeps the order in which the run named its waits; `topic` is set for events only.
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
    primary key (run_id, place)
) without rowid;

create index wait_topic on wait (topic, run_id)
    where topic is not null;

create table value (
    run_id text not null,
    name text not null,
    value text not null,
    primary key (run_id, name)
) without rowid;

-- Never reuses a number, even of an event that expired.
create table event (
    number integer primary key autoincrement,
    topic text not null,
    id text not null,
    payload text not null,
    at integer not null,
    reached integer not null
);

create unique index event_once on event (topic, id);

create index event_topic on event (topic, at);

create index event_age on event (at);

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
