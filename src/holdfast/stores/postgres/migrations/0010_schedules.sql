-- Schedules, each kept whole as JSON in `body`. The columns beside it are those by which they are looked up.

create table schedules (
    name text collate "C" primary key,
    type text collate "C" not null,
    next_at bigint,
    body text not null
);

comment on table schedules is 'holdfast''s own; read the view schedule.';

-- What is due, the earliest first. Those that are paused are not in it.
create index schedules_due on schedules (next_at, name)
    where next_at is not null;

-- Lock schedules, in one order, and tell what they are like: read afterwards, so that it is as it stays until the
-- transaction ends. Who sets them takes turns, for one that is new cannot be locked. Who fires passes over those that
-- somebody else is at: they will not be as they were.
create function load_schedules_v1(wanted text, class integer, turn integer) returns text
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set jit = off
    set lock_timeout = '10s'
    as $$
declare
    names constant text[] := text_array_v1(wanted::json);
    locked text[];
begin
    if turn is not null then
        perform pg_advisory_xact_lock(class, turn);
        locked := array(select s.name from schedules as s where s.name = any(names) order by s.name for update);
    else
        locked := array(
            select s.name from schedules as s where s.name = any(names) order by s.name for update skip locked
        );
    end if;
    return (select '[' || coalesce(string_agg(s.body, ','), '') || ']' from schedules as s where s.name = any(locked));
end
$$;

-- The first schedules that are due, from beyond a slot and name on, and when the next one is that is not.
create function due_schedules_v1(wanted integer, after_at bigint, after_name text, at bigint) returns text
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_sort = off
    set jit = off
    as $$
declare
    now constant bigint := time_v1(at);
    found text;
    upcoming bigint;
begin
    select string_agg(due.body, ',' order by due.next_at, due.name) into found
    from (
        select s.next_at, s.name, s.body
        from schedules as s
        where s.next_at <= now and (s.next_at, s.name) > (after_at, after_name collate "C")
        order by s.next_at, s.name
        limit wanted
    ) as due;
    select s.next_at into upcoming
    from schedules as s
    where s.next_at > now
    order by s.next_at
    limit 1;
    return '{"now":' || now || ',"next_at":' || coalesce(upcoming::text, 'null')
        || ',"schedules":[' || coalesce(found, '') || ']}';
end
$$;

create view schedule as
    select name, type,
        (body::json ->> 'payload')::json as payload,
        body::json ->> 'cron' as cron,
        (body::json ->> 'every')::bigint * interval '1 microsecond' as every,
        coalesce(body::json ->> 'zone', 'UTC') as zone,
        coalesce(body::json ->> 'catch_up', 'one') as catch_up,
        coalesce(body::json ->> 'overlap', 'allow') as overlap,
        coalesce((body::json ->> 'jitter')::bigint, 0) * interval '1 microsecond' as jitter,
        coalesce((body::json ->> 'priority')::smallint, 100) as priority,
        coalesce((body::json ->> 'tags')::jsonb, '{}') as tags,
        coalesce((body::json ->> 'is_declared')::boolean, false) as is_declared,
        coalesce((body::json ->> 'is_paused')::boolean, false) as is_paused,
        coalesce((body::json ->> 'skipped')::bigint, 0) as skipped,
        body::json ->> 'last_run_id' as last_run_id,
        instant((body::json ->> 'last_slot')::bigint) as last_slot,
        instant((body::json ->> 'last_skipped_slot')::bigint) as last_skipped_slot,
        instant((body::json ->> 'created_at')::bigint) as created_at,
        instant((body::json ->> 'updated_at')::bigint) as updated_at,
        instant(next_at) as next_at
    from schedules;

comment on view schedule is 'Schedules: rules that make runs over time.';
comment on column schedule.name is 'Its name.';
comment on column schedule.type is 'Of which workflow or task it makes runs.';
comment on column schedule.payload is 'What they are started with.';
comment on column schedule.cron is 'When: a cron expression; or else see every.';
comment on column schedule.every is 'When: every so often.';
comment on column schedule.zone is 'The time zone of the cron expression.';
comment on column schedule.catch_up is 'What becomes of slots that nobody fired in time: skip, one or all.';
comment on column schedule.overlap is 'Whether a slot is left out while an earlier run has not ended: allow or skip.';
comment on column schedule.jitter is 'By how much later than its slot a run may start.';
comment on column schedule.priority is 'The priority of its runs: 0 (first) to 255 (last).';
comment on column schedule.tags is 'The tags of its runs, beside schedule and slot.';
comment on column schedule.is_declared is 'Whether it stands in the code of an application.';
comment on column schedule.is_paused is 'Whether it fires no more until it is resumed.';
comment on column schedule.skipped is 'How many slots were left out because an earlier run had not ended.';
comment on column schedule.last_run_id is 'The last run it made.';
comment on column schedule.last_slot is 'The last slot for which it made a run.';
comment on column schedule.last_skipped_slot is 'The last slot that was left out because an earlier run had not ended.';
comment on column schedule.created_at is 'When it was first set.';
comment on column schedule.updated_at is 'When it last changed or fired.';
comment on column schedule.next_at is 'When it fires next; null while it is paused.';
