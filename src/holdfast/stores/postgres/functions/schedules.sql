-- Schedules: locked and loaded before their runs, and found when they are due.

-- Lock schedules in one order, then read them, so that they stay as read until the transaction ends. With `turn`, a
-- caller that sets schedules waits for other callers that do, because a schedule that does not exist yet cannot be
-- locked. Without `turn`, a caller that fires schedules skips those that another transaction has locked, because they
-- are about to change.
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

-- Returns the first due schedules after an instant and a name, and the instant at which the next one becomes due.
-- `schedules_due`
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
