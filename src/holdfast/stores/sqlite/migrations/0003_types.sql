-- What daily operations need: types with their rules and limits, slots, and runs that are removed some time after
-- their end. Every new column has a default, so that what older code writes stays valid.

-- `slots` is a JSON list, or null if it is empty.
alter table run add column slots text;
alter table run add column retention integer;
alter table run add column deleted_at integer;
alter table run add column purge_at integer;

-- What goes when its type says so, and what goes at an instant of its own.
create index run_ended on run (type, finished_at, id)
    where finished_at is not null and purge_at is null;

create index run_purge on run (purge_at, id)
    where purge_at is not null;

-- Those that people no longer see, newest first.
create index run_deleted on run (created_at, id)
    where deleted_at is not null;

-- `per_key` and `rate` are JSON; `rate_window` is what the rate has to remember.
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
    seen_at integer
) without rowid;

-- Who has a slot of which limit.
create table slot (
    name text not null,
    run_id text not null,
    primary key (name, run_id)
) without rowid;

-- Who waits for a slot, in the order in which they get one: by priority, which `after` has, and how long they wait.
create index wait_slot on wait (topic, after, since, run_id)
    where kind = 'slot';
