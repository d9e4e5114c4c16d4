-- How runs come to be and to those who work on them. `0002_leases.sql` says what all functions have in common.

-- Make runs that are new; `leased` leases those at once that are ready. Refuses all if an id or a key is taken. Types that
-- are switched off or limited have their runs claimed as all others are; they are named in the answer.
create or replace function create_v1(intents text, leased text, at bigint) returns text
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
    wanted constant json := intents::json;
    lease constant json := leased::json;
    now constant bigint := time_v1(at);
    made bigint;
    ruled text[] := '{}';
begin
    if lease is not null then
        lock table types in row share mode;  -- see claim_v1
        ruled := array(
            select t.name
            from types as t
            where t.name in (select i.type from json_to_recordset(wanted) as i (type text))
                and (t.is_limited or not t.is_enabled)
        );
    end if;
    insert into runs (
        id, type, state, priority, ready_at, worker, token, claim_id, key, parent_id, parent_location, on_close,
        created_at, start_at, updated_at, first_claimed_at, python, tags, retention, options, payload
    )
    select
        i.id,
        i.type,
        case when i.is_leased then 'running' else 'pending' end,
        coalesce(i.priority, 100),
        instant(case when i.is_leased then now + (lease ->> 'lease')::bigint else i.start_at end),
        case when i.is_leased then lease ->> 'worker' end,
        i.is_leased::integer,
        case when i.is_leased then lease ->> 'claim_id' end,
        i.key,
        i.parent_id,
        i.parent_location,
        coalesce(i.on_close, 'abandon'),
        now,
        i.start_at,
        now,
        case when i.is_leased then now end,
        case when i.is_leased then lease ->> 'python' end,
        i.tags,
        i.retention,
        i.options::text,
        i.payload
    from (
        select *, lease is not null and t.start_at <= now and t.type <> all(ruled) as is_leased
        from (
            select
                r.id, r.type, r.payload, r.key, r.priority, r.tags, r.parent_id, r.parent_location, r.on_close,
                r.options, r.retention,
                greatest(now, coalesce(r.start_at, 0)) + coalesce(r.delay, 0) as start_at
            from json_to_recordset(wanted) as r (
                id text, type text, payload text, key text, priority smallint, start_at bigint, delay bigint, tags jsonb,
                parent_id text, parent_location text, on_close text, options json, retention bigint
            )
        ) as t
    ) as i
    order by i.key collate "C", i.id collate "C"
    on conflict do nothing;
    get diagnostics made = row_count;
    if made < json_array_length(wanted) then
        raise exception 'an id or a key is taken' using errcode = 'HF001';
    end if;
    if lease is not null then
        insert into audits (run_id, event, at, data)
        select r.id, 'claimed', now, json_build_object('worker', r.worker, 'token', r.token)::text
        from json_to_recordset(wanted) as i (id text)
        join runs as r on r.id = i.id
        where r.worker is not null;
    end if;
    if cardinality(ruled) > 0 then
        return json_build_object('now', now, 'ruled', ruled)::text;
    end if;
    return json_build_object('now', now)::text;
end
$$;

-- The first due runs of some types, by priority, ready time and id; of suspects no more than `suspects`.
--
-- Lanes of the queue (one per type and priority) are read from their heads, without a lock.
create function due_v1(wanted_types text[], due timestamptz, wanted integer, suspects integer)
    returns table (id text, priority smallint, ready_at timestamptz, is_suspect boolean)
    language plpgsql stable
    as $$
begin
    return query
    with recursive lanes (type, priority) as (
        select t.type, l.priority
        from unnest(wanted_types) as t (type)
        cross join lateral (
            select r.priority
            from runs as r
            where r.type = t.type and r.worker is null and r.ready_at is not null
            order by r.priority
            limit 1
        ) as l
        union all
        select lanes.type, l.priority
        from lanes
        cross join lateral (
            select r.priority
            from runs as r
            where r.type = lanes.type and r.priority > lanes.priority
                and r.worker is null and r.ready_at is not null
            order by r.priority
            limit 1
        ) as l
    ),
    candidates as (
        select f.id, f.priority, f.ready_at, false as is_suspect
        from lanes
        cross join lateral (
            select r.id, r.priority, r.ready_at
            from runs as r
            where r.type = lanes.type and r.priority = lanes.priority
                and r.worker is null and r.ready_at <= due
                and r.crashes < 2
            order by r.ready_at, r.id
            limit wanted
        ) as f
        union all
        select f.id, f.priority, f.ready_at, false
        from unnest(wanted_types) as t (type)
        cross join lateral (
            select r.id, r.priority, r.ready_at
            from runs as r
            where r.type = t.type and r.worker is not null and r.ready_at <= due
                and r.crashes < 1
            order by r.ready_at, r.id
            limit wanted
        ) as f
        union all (
            select f.id, f.priority, f.ready_at, true
            from unnest(wanted_types) as t (type)
            cross join lateral (
                select r.id, r.priority, r.ready_at
                from runs as r
                where suspects > 0
                    and r.type = t.type and r.crashes > 0 and r.ready_at is not null and r.ready_at <= due
                    and r.crashes + (r.worker is not null)::integer >= 2
                order by r.priority, r.ready_at, r.id
                limit suspects
            ) as f
            order by f.priority, f.ready_at, f.id
            limit suspects
        )
    )
    select c.id, c.priority, c.ready_at, c.is_suspect
    from candidates as c
    order by c.priority, c.ready_at, c.id
    limit wanted;
end
$$;

-- When the next run of some types may be claimed; what a worker holds itself is nothing to come back for.
create function next_ready_v1(types text[], by_worker text) returns bigint
    language plpgsql stable
    as $$
begin
    return micros(least(
        (
            select min(l.ready_at)
            from unnest(types) as t (type)
            cross join lateral (
                with recursive lanes (priority) as (
                    (
                        select r.priority
                        from runs as r
                        where r.type = t.type and r.worker is null and r.ready_at is not null
                        order by r.priority
                        limit 1
                    )
                    union all
                    select p.priority
                    from lanes
                    cross join lateral (
                        select r.priority
                        from runs as r
                        where r.type = t.type and r.priority > lanes.priority
                            and r.worker is null and r.ready_at is not null
                        order by r.priority
                        limit 1
                    ) as p
                )
                select f.ready_at
                from lanes
                cross join lateral (
                    select r.ready_at
                    from runs as r
                    where r.type = t.type and r.priority = lanes.priority
                        and r.worker is null and r.ready_at is not null
                    order by r.ready_at
                    limit 1
                ) as f
            ) as l
        ),
        (
            select min(l.ready_at)
            from unnest(types) as t (type)
            cross join lateral (
                select r.ready_at
                from runs as r
                where r.type = t.type and r.worker is not null and r.worker <> by_worker
                order by r.ready_at
                limit 1
            ) as l
        )
    ));
end
$$;

-- Runs as whoever has claimed them gets them, with their histories and inboxes.
-- Nobody has written anything before the first claim, but he may have before it is repeated.
create function leases_v1(claimed text[], is_repeat boolean) returns json
    language plpgsql stable
    as $$
begin
    return (
        select coalesce(json_agg(json_build_object(
            'run', row_to_json(r),
            'entries', case when r.token = 1 and not is_repeat then '[]'::json else history_v1(r.id) end,
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

-- Lease the first due runs of some types, by priority, ready time and id, with their histories and inboxes.
--
-- More of them are read than are wanted, as other claimers may be quicker; then the first that nobody has locked are
-- leased. What they look like is read afterwards: only a statement that begins when the lock is held sees all that the
-- last holder has written.
--
-- Types that are switched off are passed over. If runs of limited types are due nothing is leased, and the answer tells
-- which types are, and which others are to be claimed: who gets a slot takes more than one trip. Whoever changes the
-- rules of types waits until those who claim by the old ones are through, so no run is leased past a limit that does not
-- know of it.
create or replace function claim_v1(
    claim_id text, by_worker text, wanted_types text[], wanted integer, lease bigint, by_python text,
    may_suspect boolean, is_repeat boolean, at bigint
) returns text
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
    set enable_bitmapscan = off
    as $$
declare
    now constant bigint := time_v1(at);
    due constant timestamptz := instant(now);
    spare constant integer := wanted * 4 + 16;
    queued text[] := wanted_types;
    disabled text[];
    limited text[];
    claimed text[];
    worn text[];
    seen bigint;
    next_ready bigint;
begin
    if is_repeat then
        claimed := array(
            select r.id
            from runs as r
            where r.worker = by_worker and r.worker is not null
                and r.type = any(wanted_types)
                and r.claim_id = claim_v1.claim_id
        );
        next_ready := now;
    end if;
    if coalesce(cardinality(claimed), 0) = 0 then
        lock table types in row share mode;
        select array_agg(t.name) filter (where not t.is_enabled), array_agg(t.name) filter (where t.is_enabled)
        into disabled, limited
        from types as t
        where t.name = any(wanted_types) and (t.is_limited or not t.is_enabled);
        if disabled is not null or limited is not null then
            queued := array(select t.type from unnest(queued) as t (type) where t.type <> all(coalesce(disabled, '{}')));
            wanted_types := array(select t.type from unnest(queued) as t (type) where t.type <> all(coalesce(limited, '{}')));
        end if;
        if limited is not null and exists (select from due_v1(limited, due, 1, may_suspect::integer)) then
            return json_build_object(
                'now', now,
                'limited', limited,
                'others', wanted_types,
                'rated', array(select t.name from types as t where t.name = any(limited) and t.rate is not null),
                'has_requests', exists (select from requests)
            )::text;
        end if;
        for attempt in 1 .. 3 loop
            with candidates as (
                select c.id, c.priority, c.ready_at, c.is_suspect
                from due_v1(wanted_types, due, spare, may_suspect::integer) as c
            ),
            chosen as (
                select r.id, r.priority, r.ready_at, r.worker as lost
                from (
                    select c.id, c.priority, c.ready_at, c.is_suspect
                    from candidates as c
                    order by c.priority, c.ready_at, c.id
                    limit spare
                ) as c
                join runs as r on r.id = c.id
                where r.ready_at <= due
                    and (c.is_suspect or r.crashes + (r.worker is not null)::integer < 2)
                order by c.priority, c.ready_at, c.id
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
                returning r.id, r.token, r.crashes, c.lost, c.priority, c.ready_at
            ),
            noted as (
                insert into audits (run_id, event, at, data)
                select l.id, 'claimed', now,
                    case
                        when l.lost is null then json_build_object('worker', by_worker, 'token', l.token)
                        else json_build_object('worker', by_worker, 'token', l.token, 'crashes', l.crashes, 'lost', l.lost)
                    end::text
                from leased as l
            )
            select
                coalesce(array_agg(l.id order by l.priority, l.ready_at, l.id), '{}'),
                array_agg(l.id) filter (where l.token % 50 = 0),
                (select count(*) from candidates)
            into claimed, worn, seen
            from leased as l;
            exit when cardinality(claimed) > 0 or seen = 0;
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
        'leases', leases_v1(claimed, is_repeat)
    )::text;
end
$$;

-- What a claim has leased by the rules of limits, and when there may be more of the types that are not switched off.
create function leased_v1(claimed text[], types text[], by_worker text) returns text
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
    set enable_bitmapscan = off
    as $$
declare
    worn constant text[] := array(select r.id from runs as r where r.id = any(claimed) and r.token % 50 = 0);
begin
    if cardinality(worn) > 0 then
        perform trim_v1(worn);
    end if;
    return json_build_object('next_ready_at', next_ready_v1(types, by_worker), 'leases', leases_v1(claimed, false))::text;
end
$$;

-- The first due runs of some types, for whoever looks which of them cannot be read.
create function due_ids_v1(types text, wanted integer, at bigint) returns text
    language plpgsql stable
    set search_path from current
    as $$
declare
    wanted_types constant text[] := array(select json_array_elements_text(types::json));
begin
    return (
        select coalesce(json_agg(due.id), '[]')::text
        from due_v1(wanted_types, instant(time_v1(at)), wanted, 1) as due
    );
end
$$;

-- A run as whoever claims it would get it, in a list: `->` would refuse half a surrogate pair anywhere in it.
create function lease_v1(of_run text) returns text
    language plpgsql stable
    set search_path from current
    as $$
begin
    return leases_v1(array[of_run], true)::text;
end
$$;

-- Block a run that nobody can read: one that a worker holds, or that is due. Only a hand can mend it, so it is not tried
-- again by itself.
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

-- Of what happens to a run over and over only the last facts are kept; now and then the rest is cleared away.
create or replace function trim_v1(of_runs text[]) returns void
    language plpgsql
    set search_path from current
    as $$
begin
    delete from audits as old
    using unnest(of_runs) as c (id)
    cross join lateral (
        select a.number
        from audits as a
        where a.run_id = c.id and a.event in ('claimed', 'suspended', 'woken', 'parked', 'heartbeat')
        order by a.number desc
        offset 100
        limit 1
    ) as last
    where old.run_id = c.id
        and old.number <= last.number
        and old.event in ('claimed', 'suspended', 'woken', 'parked', 'heartbeat');
end
$$;
