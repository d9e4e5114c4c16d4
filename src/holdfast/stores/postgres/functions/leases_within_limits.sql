-- Returns the runs that a claim has leased within limits, and the time when the next run of the enabled types may be
-- claimed. `offered` is sorted by code point.
create function leases_within_limits_v1(claimed text[], offered text[], by_worker text) returns text
    {{operation}}
    set enable_bitmapscan = off
    as $$
declare
    worn constant text[] := array(
        select r.id
        from runs as r
        where r.id = any(claimed) and r.token % {{trim_every}} = 0
    );
    present constant text[] := present_v1(offered);
    disabled constant text[] := array(select t.name from types as t where t.name = any(present) and not t.is_enabled);
    queued constant text[] := array(select t.type from unnest(present) as t (type) where t.type <> all(disabled));
begin
    if cardinality(worn) > 0 then
        perform trim_v1(worn);
    end if;
    return json_build_object(
        'next_ready_at', next_ready_v1(queued, by_worker),
        'leases', leases_of_runs_v1(claimed, false)
    )::text;
end
$$;
