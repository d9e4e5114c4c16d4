-- What daily operations need: types with their rules and limits, slots, and runs that are removed some time after
-- their end. The functions that these concern follow in the next files, each in place of an older one.

alter table runs
    add column slots text,
    add column retention bigint,
    add column deleted_at bigint,
    add column purge_at bigint;

-- What goes when its type says so, and what goes at an instant of its own.
create index runs_ended on runs (type, finished_at, id)
    where finished_at is not null and purge_at is null;

create index runs_purge on runs (purge_at, id)
    where purge_at is not null;

-- `rate_window` is what the rate has to remember.
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
    seen_at bigint
);

-- Who has a slot of which limit.
create table slots (
    name text collate "C" not null,
    run_id text collate "C" not null,
    primary key (name, run_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- Who waits for a slot, in the order in which they get one: by priority, which `after` has, and how long they wait.
create index waits_slot on waits (topic, after, since, run_id)
    where kind = 'slot';

create or replace view runs_read as
    select id, type, state, payload, created_at,
        coalesce(start_at, micros(ready_at), created_at) as start_at,
        updated_at, priority,
        micros(ready_at) as ready_at,
        key,
        coalesce(tags::json, '{}') as tags,
        worker, token, claim_id, first_claimed_at, finished_at, python, attempt, generation, crashes, arrivals,
        parent_id, parent_location, on_close, result,
        error::json as error,
        rollback, is_pausing, suspended_at, continued,
        coalesce(options, '{}')::json as options,
        coalesce(slots, '[]')::json as slots,
        retention, deleted_at, purge_at
    from runs;

create view types_read as
    select name, runtime, description, is_enabled, concurrency,
        coalesce(per_key, '{}')::json as per_key,
        rate::json as rate,
        retention, seen_by, seen_at
    from types;
