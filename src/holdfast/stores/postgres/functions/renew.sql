-- Renew the leases that a worker still holds, and record its heartbeat. A run whose row is locked is `skipped`: no
-- other worker can claim it meanwhile, and one long transaction must not cost the worker all its other leases.
create function renew_v1(by_worker text, holdings text, lease bigint, at bigint) returns text
    {{operation}}
    as $$
declare
    now bigint;
    free text[];
    held constant text[] := array(select h.run_id from json_to_recordset(holdings::json) as h (run_id text));
begin
    free := array(select r.id from runs as r where r.id = any(held) order by r.id for no key update skip locked);
    now := time_v1(at);
    insert into workers as known (id, name, host, pid, types, concurrency, started_at, heartbeat_at)
    select w.id, w.name, w.host, w.pid, w.types::text, w.concurrency, now, now
    from json_to_record(by_worker::json) as w (
        id text, name text, host text, pid bigint, types json, concurrency bigint
    )
    on conflict (id) do update
    set name = excluded.name, host = excluded.host, pid = excluded.pid, types = excluded.types,
        concurrency = excluded.concurrency, heartbeat_at = excluded.heartbeat_at;
    update runs
    set ready_at = instant(now + lease)
    where id = any(array(
        select h.run_id
        from json_to_recordset(holdings::json) as h (run_id text, token bigint)
        cross join lateral (
            select
            from runs as r
            where r.id = h.run_id and r.token = h.token and coalesce(r.worker, '') <> ''
            limit 1
        ) as mine
        where h.run_id = any(free)
    ));
    return json_build_object(
        'told', look_v1(holdings, now)::json,
        'skipped', array(select unnest(held) except select unnest(free))
    )::text;
end
$$;
