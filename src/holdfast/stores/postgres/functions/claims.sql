-- Claims: which runs a worker gets, what it gets with them, and how it keeps them.

-- Lease the first due runs of some types, in claim order, with their histories and inboxes. `offered` is sorted by
-- code point; `since_new` and `since_child` are the counts of `holdfast.core.claim_order.Shares`.
--
-- Each priority begins with these counts. Begun run n has the turn 2 * (n - 1 + since_child) and child n has the turn
-- 2 * (share - 1) * n - 1, so one child follows every share - 1 begun runs. The runs of both ranks form one sequence,
-- which is merged with the new starts in the same way, by `since_new`.
--
-- Other claims may have locked some candidates, so this claim reads more of them than it needs. If all are locked, it
-- reads four times as many. A separate statement then reads the leased runs, because only a statement that begins after
-- the lock sees everything that the last holder has written.
--
-- Disabled types are skipped. If runs of limited types are due, nothing is leased, because handing out slots takes more
-- than one statement. The answer then names the limited types and the others to claim. A change of the rules of types
-- waits until all claims under the old rules have ended, so no run is leased without being counted by a limit.
create function claim_v1(
    claim_id text, by_worker text, offered text[], wanted integer, lease bigint, by_python text,
    may_suspect boolean, is_repeat boolean, since_new integer, since_child integer, at bigint
) returns text
    {{operation}}
    set enable_bitmapscan = off
    as $$
declare
    now constant bigint := time_v1(at);
    due constant timestamptz := instant(now);
    spare integer := wanted * 4 + 16;
    queued text[];
    wanted_types text[];
    disabled text[];
    limited text[];
    candidates text[];
    suspect text;
    claimed text[];
    worn text[];
    next_ready bigint;
begin
    if is_repeat then
        claimed := array(
            select r.id
            from runs as r
            where r.worker = by_worker and r.worker is not null
                and r.type = any(present_v1(offered))
                and r.claim_id = claim_v1.claim_id
        );
        next_ready := now;
    end if;
    if coalesce(cardinality(claimed), 0) = 0 then
        lock table types in row share mode;
        -- Up to four types, seeking each one costs no more than finding out which of them are present.
        queued := case when cardinality(offered) > 4 then present_v1(offered) else offered end;
        select array_agg(t.name) filter (where not t.is_enabled), array_agg(t.name) filter (where t.is_enabled)
        into disabled, limited
        from types as t
        where t.name = any(queued) and (t.is_limited or not t.is_enabled);
        if disabled is not null then
            queued := array(select t.type from unnest(queued) as t (type) where t.type <> all(disabled));
        end if;
        wanted_types := queued;
        if limited is not null then
            wanted_types := array(select t.type from unnest(queued) as t (type) where t.type <> all(limited));
            if exists (select from heads_v1(limited, due, 1, 0, may_suspect::integer)) then
                return json_build_object(
                    'now', now,
                    'limited', limited,
                    'others', wanted_types,
                    'rated', array(select t.name from types as t where t.name = any(limited) and t.rate is not null),
                    'has_requests', exists (select from requests)
                )::text;
            end if;
        end if;
        for attempt in 1 .. 3 loop
            select array_agg(c.id order by c.priority, c.turn), min(c.id) filter (where c.is_suspect)
            into candidates, suspect
            from (
                select n.id, n.priority, n.is_suspect,
                    case
                        when n.rank = {{new}} then 2 * ({{share}} - 1) * n.number - 1
                        else 2 * (n.number - 1 + since_new)
                    end as turn
                from (
                    select b.id, b.priority, b.rank, b.is_suspect,
                        row_number() over (partition by b.priority, b.rank = {{new}} order by b.turn) as number
                    from (
                        select f.id, f.priority, f.rank, f.is_suspect,
                            case
                                when f.rank = {{child}} then 2 * ({{share}} - 1) * f.number - 1
                                else 2 * (f.number - 1 + since_child)
                            end as turn
                        from (
                            select h.id, h.priority, h.rank, h.is_suspect,
                                row_number() over (
                                    partition by h.priority, h.rank order by h.ready_at, h.id collate "C"
                                ) as number
                            from heads_v1(wanted_types, due, wanted, spare, may_suspect::integer) as h
                        ) as f
                    ) as b
                ) as n
                order by n.priority, turn
                limit spare
            ) as c;
            exit when candidates is null;
            with chosen as (
                select r.id, c.place, r.worker as lost
                from unnest(candidates) with ordinality as c (id, place)
                join runs as r on r.id = c.id
                where r.ready_at <= due
                    and (c.id = suspect or r.crashes + (r.worker is not null)::integer < {{suspect_crashes}})
                order by c.place
                limit wanted
                for no key update of r skip locked
            ),
            leased as (
                update runs as r
                set state = case when r.rollback is null then 'running' else 'rolling_back' end,
                    worker = by_worker,
                    claim_id = claim_v1.claim_id,
                    token = r.token + 1,
                    start_at = coalesce(r.start_at, micros(r.ready_at)),
                    ready_at = instant(now + lease),
                    crashes = r.crashes + (c.lost is not null)::integer,
                    attempt = r.attempt + (c.lost is not null or r.state = 'blocked')::integer,
                    first_claimed_at = coalesce(r.first_claimed_at, now),
                    python = coalesce(r.python, by_python),
                    updated_at = now
                from chosen as c
                where r.id = c.id
                returning r.id, r.token, r.crashes, c.lost, c.place
            ),
            noted as (
                insert into audits (run_id, event, at, data)
                select l.id, 'claimed', now,
                    case
                        when l.lost is null then json_build_object('worker', by_worker, 'token', l.token)
                        else json_build_object(
                            'worker', by_worker, 'token', l.token, 'crashes', l.crashes, 'lost', l.lost
                        )
                    end::text
                from leased as l
            )
            select
                coalesce(array_agg(l.id order by l.place), '{}'),
                array_agg(l.id) filter (where l.token % {{trim_every}} = 0)
            into claimed, worn
            from leased as l;
            exit when cardinality(claimed) > 0;
            spare := spare * 4;
        end loop;
        if worn is not null then
            perform trim_v1(worn);
        end if;
        if cardinality(claimed) >= wanted then
            next_ready := now;  -- there may be more
        else
            next_ready := next_ready_v1(queued, by_worker);
        end if;
    end if;
    return json_build_object(
        'now', now,
        'next_ready_at', next_ready,
        'has_requests', exists (select from requests),
        'leases', leases_of_runs_v1(claimed, is_repeat)
    )::text;
end
$$;

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

-- Returns the offered types that have a queued or a held run. `offered` is sorted by code point.
--
-- Each step seeks the first run whose type is the sought one or comes after it. The next step seeks the first offered
-- type after the type of that run. So the number of steps is bounded by the types that have runs and by those that are
-- offered. An idle worker that offers a thousand types pays for one. `runs_queue`, `runs_held`
create function present_v1(offered text[]) returns text[]
    language plpgsql stable
    as $$
begin
    return array(
        with recursive queued (type, is_offered, sought, place) as (
            select null collate "C", false, offered[1], 1
            union all
            select
                first.type,
                first.type = q.sought or first.type = offered[next.place - 1],
                offered[next.place],
                next.place
            from queued as q
            cross join lateral (
                select r.type
                from runs as r
                where r.type >= q.sought and r.worker is null and r.ready_at is not null
                order by r.type
                limit 1
            ) as first
            cross join lateral (
                select
                    case when first.type = q.sought then q.place else width_bucket(first.type, offered) end + 1 as place
                offset 0
            ) as next
        ),
        held (type, is_offered, sought, place) as (
            select null collate "C", false, offered[1], 1
            union all
            select
                first.type,
                first.type = q.sought or first.type = offered[next.place - 1],
                offered[next.place],
                next.place
            from held as q
            cross join lateral (
                select r.type
                from runs as r
                where r.type >= q.sought and r.worker is not null
                order by r.type
                limit 1
            ) as first
            cross join lateral (
                select
                    case when first.type = q.sought then q.place else width_bucket(first.type, offered) end + 1 as place
                offset 0
            ) as next
        )
        select q.type
        from queued as q
        where q.is_offered
        union
        select q.type
        from held as q
        where q.is_offered
    );
end
$$;

-- Returns the first due runs of the lanes of some types, in no order and without a lock: of each priority and rank at
-- least the first `wanted` runs that are not suspects, about `spare` in total, and the first `suspects` suspects.
--
-- The heads of lanes with the same priority and rank are numbered. Lane n adds at most `size + 1 - n` runs to the
-- first `size` of them, because the n - 1 heads before it come first.
--
-- The function is written in SQL, so that Postgres inlines a call and plans it together with the caller, once per
-- session. `runs_queue`, `runs_held`, `runs_crashed`
create function heads_v1(wanted_types text[], due timestamptz, wanted integer, spare integer, suspects integer)
    returns table (id text, priority smallint, rank integer, ready_at timestamptz, is_suspect boolean)
    language sql stable
    as $$
        with recursive queued (type, priority, rank, ready_at, id) as (
            select t.type, head.priority, head.rank, head.ready_at, head.id
            from unnest(wanted_types) as t (type)
            cross join lateral (
                select r.priority, {{rank}} as rank, r.ready_at, r.id
                from runs as r
                where r.type = t.type
                    and r.worker is null and r.ready_at is not null
                    and r.crashes < {{suspect_crashes}}
                order by r.priority, {{rank}}, r.ready_at, r.id
                limit 1
            ) as head
            union all
            select q.type, head.priority, head.rank, head.ready_at, head.id
            from queued as q
            cross join lateral (
                select r.priority, {{rank}} as rank, r.ready_at, r.id
                from runs as r
                where r.type = q.type and (r.priority, {{rank}}) > (q.priority, q.rank)
                    and r.worker is null and r.ready_at is not null
                    and r.crashes < {{suspect_crashes}}
                order by r.priority, {{rank}}, r.ready_at, r.id
                limit 1
            ) as head
        ),
        lanes (type, priority, rank, place) as (
            select q.type, q.priority, q.rank,
                row_number() over (partition by q.priority, q.rank order by q.ready_at, q.id)
            from queued as q
            where q.ready_at <= due
        ),
        room (size) as (
            select greatest(wanted, spare / greatest(1, count(*)))
            from lanes as l
            where l.place = 1
        ),
        held (type, priority, ready_at) as (
            select t.type, head.priority, head.ready_at
            from unnest(wanted_types) as t (type)
            cross join lateral (
                select r.priority, r.ready_at
                from runs as r
                where r.type = t.type and r.worker is not null
                order by r.priority, r.ready_at
                limit 1
            ) as head
            union all
            select h.type, head.priority, head.ready_at
            from held as h
            cross join lateral (
                select r.priority, r.ready_at
                from runs as r
                where r.type = h.type and r.priority > h.priority and r.worker is not null
                order by r.priority, r.ready_at
                limit 1
            ) as head
        )
        select run.id, l.priority, l.rank, run.ready_at, false
        from lanes as l
        cross join lateral (
            select r.id, r.ready_at
            from runs as r
            where r.type = l.type and r.priority = l.priority and {{rank}} = l.rank
                and r.worker is null and r.ready_at <= due
                and r.crashes < {{suspect_crashes}}
            order by r.ready_at, r.id
            limit (select room.size from room) + 1 - l.place
        ) as run
        where l.place <= (select room.size from room)
        union all
        select run.id, h.priority, {{begun}}, run.ready_at, false
        from held as h
        cross join lateral (
            select r.id, r.ready_at
            from runs as r
            where r.type = h.type and r.priority = h.priority
                and r.worker is not null and r.ready_at <= due
                and r.crashes + 1 < {{suspect_crashes}}
            order by r.ready_at, r.id
            limit (select room.size from room)
        ) as run
        where h.ready_at <= due
        union all (
            select run.id, run.priority, {{begun}}, run.ready_at, true
            from unnest(wanted_types) as t (type)
            cross join lateral (
                select r.id, r.priority, r.ready_at
                from runs as r
                where suspects > 0
                    and r.type = t.type and r.crashes > 0 and r.ready_at is not null and r.ready_at <= due
                    and r.crashes + (r.worker is not null)::integer >= {{suspect_crashes}}
                order by r.priority, r.ready_at, r.id
                limit suspects
            ) as run
            order by run.priority, run.ready_at, run.id
            limit suspects
        )
    $$;

-- Returns the due runs that a claim within limits needs: of each rank the first `wanted` by priority, ready time and
-- id, and the first `suspects` suspects. Shares play no part here: they count only runs that get a slot, and these are
-- not known yet.
create function due_v1(wanted_types text[], due timestamptz, wanted integer, suspects integer) returns table (id text)
    language plpgsql stable
    as $$
begin
    return query
    select n.id
    from (
        select h.id, h.is_suspect,
            row_number() over (
                partition by h.rank, h.is_suspect order by h.priority, h.ready_at, h.id collate "C"
            ) as number
        from heads_v1(wanted_types, due, wanted, 0, suspects) as h
    ) as n
    where n.is_suspect or n.number <= wanted;
end
$$;

-- Returns the time when the next run of some types may be claimed, without runs that the worker itself holds. The head
-- of a lane is its first run to become ready. `runs_queue`, `runs_held`
create function next_ready_v1(types text[], by_worker text) returns bigint
    language plpgsql stable
    as $$
begin
    return micros(least(
        (
            with recursive queued (type, priority, rank, ready_at) as (
                select t.type, head.priority, head.rank, head.ready_at
                from unnest(types) as t (type)
                cross join lateral (
                    select r.priority, {{rank}} as rank, r.ready_at
                    from runs as r
                    where r.type = t.type and r.worker is null and r.ready_at is not null
                    order by r.priority, {{rank}}, r.ready_at
                    limit 1
                ) as head
                union all
                select q.type, head.priority, head.rank, head.ready_at
                from queued as q
                cross join lateral (
                    select r.priority, {{rank}} as rank, r.ready_at
                    from runs as r
                    where r.type = q.type and (r.priority, {{rank}}) > (q.priority, q.rank)
                        and r.worker is null and r.ready_at is not null
                    order by r.priority, {{rank}}, r.ready_at
                    limit 1
                ) as head
            )
            select min(q.ready_at)
            from queued as q
        ),
        (
            with recursive held (type, priority) as (
                select t.type, head.priority
                from unnest(types) as t (type)
                cross join lateral (
                    select r.priority
                    from runs as r
                    where r.type = t.type and r.worker is not null
                    order by r.priority
                    limit 1
                ) as head
                union all
                select h.type, head.priority
                from held as h
                cross join lateral (
                    select r.priority
                    from runs as r
                    where r.type = h.type and r.priority > h.priority and r.worker is not null
                    order by r.priority
                    limit 1
                ) as head
            )
            select min(first.ready_at)
            from held as h
            cross join lateral (
                select r.ready_at
                from runs as r
                where r.type = h.type and r.priority = h.priority
                    and r.worker is not null and r.worker <> by_worker
                order by r.ready_at
                limit 1
            ) as first
        )
    ));
end
$$;

-- Block a run that cannot be decoded, if the worker holds it, or if no worker is named and it is due. Only a person can
-- correct its row, so there is no next try.
create function block_unreadable_v1(of_run text, by_worker text, reason text, at bigint) returns text
    language plpgsql
    set search_path from current
    as $$
declare
    now constant bigint := time_v1(at);
begin
    update runs
    set state = 'blocked',
        token = token + 1,
        worker = null,
        claim_id = null,
        ready_at = null,
        start_at = coalesce(start_at, micros(ready_at)),
        error = json_build_object('type', 'Unreadable', 'message', reason)::text,
        updated_at = now
    where id = of_run
      and (worker = by_worker or (by_worker is null and ready_at <= instant(now)));
    if not found then
        return 'false';
    end if;
    insert into audits (run_id, event, at, data)
    values (of_run, 'blocked', now, json_build_object('error', 'Unreadable: ' || reason)::text);
    return 'true';
end
$$;

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
