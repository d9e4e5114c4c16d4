-- Leases: what a worker gets with a claimed run, and how it keeps the run.

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

-- Returns the verdicts on held runs: their new arrivals, and which of the runs are lost.
create function look_v1(holdings text, at bigint) returns text
    {{operation}}
    as $$
begin
    return json_build_object(
        'now', time_v1(at),
        'verdicts', (
            select coalesce(json_agg(
                case
                    when r.token = h.token and r.worker is not null then json_build_object(
                        'run_id', h.run_id,
                        'seen', r.arrivals,
                        'stop', r.stop,
                        'arrivals', case when r.arrivals <= h.seen then '[]'::json else newer_v1(r.id, h.seen) end
                    )
                    else json_build_object('run_id', h.run_id, 'is_lost', true, 'is_held', false)
                end
                order by h.place
            ), '[]')
            from (
                select
                    h.place,
                    h.value ->> 'run_id' as run_id,
                    (h.value ->> 'token')::bigint as token,
                    coalesce((h.value ->> 'seen')::bigint, 0) as seen
                from json_array_elements(holdings::json) with ordinality as h (value, place)
            ) as h
            left join runs as r on r.id = h.run_id
        )
    )::text;
end
$$;

-- Returns claimed runs with their histories and inboxes. A run has no history at its first claim, unless the claim is
-- repeated: its holder may have written since.
create function leases_of_runs_v1(claimed text[], is_repeat boolean) returns json
    language plpgsql stable
    as $$
begin
    return (
        select coalesce(json_agg(json_build_object(
            'run', row_to_json(r),
            'entries', case when r.token = 1 and not is_repeat then '[]'::json else leased_history_v1(r.id) end,
            'arrivals', case when r.arrivals = 0 then '[]'::json else newer_v1(r.id, 0) end
        ) order by c.place), '[]')
        from unnest(claimed) with ordinality as c (id, place)
        cross join lateral (
            select *
            from runs_read as r
            where r.id = c.id
            limit 1
        ) as r
    );
end
$$;

-- Returns the entries of a run that a lease has, in the order of `history_v1`: all but those for people.
create function leased_history_v1(of_run text) returns json
    {{reader}}
    as $$
begin
    return (
        select coalesce(
            json_agg(row_to_json(e) order by e.position = 0, e.position, e.location collate "C"), '[]'
        )
        from entries_read as e
        where e.run_id = of_run and left(e.location, 1) <> '{{people_prefix}}'
    );
end
$$;
