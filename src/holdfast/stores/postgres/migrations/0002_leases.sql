-- Operations: each is one call, one round trip and one commit. They apply and never decide: what becomes of a run
-- is for `holdfast.core.rules` to say. Statements of a function see what was committed before each of them, so that
-- what is read after a lock is as new as the lock.
--
-- Arguments and answers are JSON. The last argument is the time; without it, that of the server. Names carry a
-- version: workers of an older release go on with the functions they know.
--
-- A statement is planned once per session: to plan it takes longer than to carry it out, and there is one good way to do
-- it, whatever the values. Tables may still be empty then, so a sequential scan or a hash join is never to be chosen, and
-- to read a row that is not wanted is said to be dear.
-- Functions in SQL are planned at every call, unless their text can be put in its place; so all others are PL/pgSQL.
-- Those that are only called by others have no settings of their own.

-- The time of an operation. It names nothing of this schema, so that its text is put in place of a call.
create function time_v1(at bigint) returns bigint
    language sql volatile parallel safe
    as $$ select coalesce(at, (extract(epoch from clock_timestamp()) * 1000000)::bigint) $$;

-- The entries of a run, in the order in which they were settled; the others come last.
create function history_v1(of_run text) returns json
    language plpgsql stable
    set search_path from current
    as $$
begin
    return (
        select coalesce(
            json_agg(row_to_json(e) order by e.position = 0, e.position, e.location collate "C"), '[]'
        )
        from entries_read as e
        where e.run_id = of_run
    );
end
$$;

-- What waits in the inbox of a run beyond a number.
create function newer_v1(of_run text, seen bigint) returns json
    language plpgsql stable
    set search_path from current
    as $$
begin
    return (
        select coalesce(json_agg(row_to_json(a) order by a.number), '[]')
        from inbox_read as a
        where a.run_id = of_run and a.number > seen
    );
end
$$;

-- What holders are told of their runs: null for one that is lost.
create function look_v1(holdings text, at bigint) returns text
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set cpu_tuple_cost = 1
    set cpu_index_tuple_cost = 1
    set jit = off
    set lock_timeout = '10s'
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
                        'is_pausing', r.is_pausing,
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

-- Prolong the leases that are still those of a worker, and tell that it lives. A run that is being written right now
-- is `skipped`: nobody can claim it meanwhile, and a transaction that takes long must not cost all others their leases.
create function renew_v1(by_worker text, holdings text, lease bigint, at bigint) returns text
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set cpu_tuple_cost = 1
    set cpu_index_tuple_cost = 1
    set jit = off
    set lock_timeout = '10s'
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
