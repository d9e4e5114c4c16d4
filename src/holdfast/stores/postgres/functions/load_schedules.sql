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
