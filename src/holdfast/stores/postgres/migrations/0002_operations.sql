-- The operations: each is one call, one round trip and one commit. They apply and never decide: what becomes of a run
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

-- Make runs that are new; `leased` leases those at once that are ready. Refuses all if an id or a key is taken.
create function create_v1(intents text, leased text, at bigint) returns text
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set cpu_tuple_cost = 1
    set cpu_index_tuple_cost = 1
    set jit = off
    as $$
declare
    wanted constant json := intents::json;
    lease constant json := leased::json;
    now constant bigint := time_v1(at);
    made bigint;
begin
    insert into runs (
        id, type, state, priority, ready_at, worker, token, claim_id, key, parent_id, parent_location, on_close,
        created_at, start_at, updated_at, first_claimed_at, python, tags, options, payload
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
        i.options::text,
        i.payload
    from (
        select *, lease is not null and t.start_at <= now as is_leased
        from (
            select
                r.id, r.type, r.payload, r.key, r.priority, r.tags, r.parent_id, r.parent_location, r.on_close,
                r.options,
                greatest(now, coalesce(r.start_at, 0)) + coalesce(r.delay, 0) as start_at
            from json_to_recordset(wanted) as r (
                id text, type text, payload text, key text, priority smallint, start_at bigint, delay bigint, tags jsonb,
                parent_id text, parent_location text, on_close text, options json
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
    return json_build_object('now', now)::text;
end
$$;

-- Lease the first due runs of some types, by priority, ready time and id, with their histories and inboxes.
--
-- Lanes of the queue (one per type and priority) are read from their heads without a lock, more rows than are wanted,
-- as other claimers may be quicker; then the first of them that nobody has locked are leased. What they look like is
-- read afterwards: only a statement that begins when the lock is held sees all that the last holder has written.
create function claim_v1(
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
    set enable_bitmapscan = off
    as $$
declare
    now constant bigint := time_v1(at);
    due constant timestamptz := instant(now);
    spare constant integer := wanted * 4 + 16;
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
        for attempt in 1 .. 3 loop
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
                    limit spare
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
                    limit spare
                ) as f
                union all (
                    select f.id, f.priority, f.ready_at, true
                    from unnest(wanted_types) as t (type)
                    cross join lateral (
                        select r.id, r.priority, r.ready_at
                        from runs as r
                        where may_suspect
                            and r.type = t.type and r.crashes > 0 and r.ready_at is not null and r.ready_at <= due
                            and r.crashes + (r.worker is not null)::integer >= 2
                        order by r.priority, r.ready_at, r.id
                        limit 1
                    ) as f
                    order by f.priority, f.ready_at, f.id
                    limit 1
                )
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
            select micros(least(
                (
                    select min(l.ready_at)
                    from unnest(wanted_types) as t (type)
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
                    from unnest(wanted_types) as t (type)
                    cross join lateral (
                        select r.ready_at
                        from runs as r
                        where r.type = t.type and r.worker is not null and r.worker <> by_worker
                        order by r.ready_at
                        limit 1
                    ) as l
                )
            ))
            into next_ready;
        end if;
    end if;
    return json_build_object(
        'now', now,
        'next_ready_at', next_ready,
        'has_requests', exists (select from requests),
        'leases', (
            select coalesce(json_agg(json_build_object(
                'run', row_to_json(r),
                'entries', case when r.token = 1 then '[]'::json else history_v1(r.id) end,
                'arrivals', case when r.arrivals = 0 then '[]'::json else newer_v1(r.id, 0) end
            ) order by c.place), '[]')
            from unnest(claimed) with ordinality as c (id, place)
            cross join lateral (
                select *
                from runs_read as r
                where r.id = c.id
                limit 1
            ) as r
        )
    )::text;
end
$$;

-- Of what happens to a run over and over only the last facts are kept; now and then the rest is cleared away.
create function trim_v1(of_runs text[]) returns void
    language plpgsql
    set search_path from current
    as $$
begin
    delete from audits as old
    using unnest(of_runs) as c (id)
    cross join lateral (
        select a.number
        from audits as a
        where a.run_id = c.id and a.event in ('claimed', 'suspended', 'woken')
        order by a.number desc
        offset 100
        limit 1
    ) as last
    where old.run_id = c.id
        and old.number <= last.number
        and old.event in ('claimed', 'suspended', 'woken');
end
$$;

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

-- Write what turns gained and what `rules` made of their runs, each if its run is still as the caller knew it.
--
-- The n-th run is `ids[n]`, held under `tokens[n]`; `seens[n]` is the last arrival its holder knows of. `kinds[n]` is
-- `hold` if it only gained entries, `keep` if it is held on, `sleep` if nothing may have arrived since, `end`, or
-- `move`. `gained` are entries, `moved` is everything else; both name their run by its `n`.
-- A run under another token is lost, one that nobody holds was let go by this very call before. Whatever else is not
-- as expected (somebody wants it to pause, something arrived before it could sleep, an end that others must hear of)
-- is left untouched and said to be `other`: it takes more than one trip.
--
-- Each run is looked up by its id, in a loop or a lateral join: of a join Postgres might make one of each with each,
-- as long as it believes that there are few runs. Nor does a condition name `worker` alone, or Postgres would read the
-- whole index of held runs for each of them, if there were none when it last counted.
create function checkpoint_v1(
    ids text[], tokens bigint[], seens bigint[], kinds text[], gained text, moved text, at bigint
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
    as $$
declare
    now bigint;
    fit integer[];
    unsure integer[];
    unseen bigint;
    place integer;
    is_written boolean[];
    one record;
    has_more boolean := false;
    moved_ids text[];
    moved_kinds text[];
    moved_states text[];
    moved_readies bigint[];
    moved_crashes integer[];
    moved_sleeps bigint[];
    moved_rollbacks text[];
    moved_results text[];
    moved_errors text[];
    moved_events text[];
    moved_data text[];
begin
    select
        array_agg(c.n),
        array_agg(c.n) filter (where r.arrivals > 0 and c.kind <> 'hold'),
        count(*) filter (where r.arrivals <> c.seen)
    into fit, unsure, unseen
    from (
        select c.id, c.token, c.seen, c.kind, c.n
        from unnest(ids, tokens, seens, kinds) with ordinality as c (id, token, seen, kind, n)
        order by c.id collate "C"
    ) as c
    cross join lateral (
        select r.arrivals
        from runs as r
        where r.id = c.id
            and r.token = c.token
            and coalesce(r.worker, '') <> ''
            and not r.is_pausing
            and (c.kind <> 'sleep' or r.arrivals <= c.seen)
            and (c.kind <> 'end' or r.parent_id is null or r.parent_location is null)
        for no key update
    ) as r;
    now := time_v1(at);
    is_written := array_fill(cardinality(fit) is not distinct from cardinality(ids), array[cardinality(ids)]);
    if not is_written[1] then
        foreach place in array coalesce(fit, '{}') loop
            is_written[place] := true;
        end loop;
    end if;

    if moved is not null then
        -- Not for this function: an end of which others must hear or that leaves something unread, and whatever may
        -- decide over an event of a queue.
        for place in
            select distinct array_position(ids, child.parent_id)
            from runs as child
            where child.parent_id = any(array(select c.id from unnest(ids, kinds) as c (id, kind) where c.kind = 'end'))
                and child.on_close = 'cancel' and child.finished_at is null
        loop
            is_written[place] := false;
        end loop;
        if unsure is not null then
            for place in
                select m.n
                from json_to_recordset(moved::json) as m (n integer, consumed json)
                where m.n = any(unsure)
                    and exists (
                        select
                        from inbox as i
                        where i.run_id = ids[m.n]
                            and (
                                i.kind = 'event' and i.is_exclusive
                                or kinds[m.n] = 'end' and i.number not in (
                                    select t.n::bigint
                                    from json_array_elements_text(m.consumed) as t (n)
                                )
                            )
                    )
            loop
                is_written[place] := false;
            end loop;
        end if;

        select
            array_agg(ids[m.n]), array_agg(kinds[m.n]), array_agg(m.state), array_agg(m.ready_at),
            array_agg(m.crashes), array_agg(m.suspended_at), array_agg(m.rollback), array_agg(m.result),
            array_agg(m.error::text), array_agg(m.event), array_agg(m.data::text),
            bool_or(m.consumed is not null or m.waits is not null or m."values" is not null)
        into
            moved_ids, moved_kinds, moved_states, moved_readies, moved_crashes, moved_sleeps, moved_rollbacks, moved_results,
            moved_errors, moved_events, moved_data, has_more
        from json_to_recordset(moved::json) as m (
            n integer, state text, ready_at bigint, crashes integer, suspended_at bigint, rollback text, result text,
            error json, event text, data json, consumed json, waits json, "values" json
        )
        where is_written[m.n];

        insert into audits (run_id, event, at, data)
        select m.id, m.event, now, m.data
        from unnest(moved_ids, moved_events, moved_data) as m (id, event, data)
        where m.event is not null;

        update runs as r
        set (state, ready_at, crashes, finished_at, suspended_at, rollback, result, error) = (
                select
                    moved_states[m.n],
                    instant(moved_readies[m.n]),
                    coalesce(moved_crashes[m.n], 0),
                    case when moved_kinds[m.n] = 'end' then now end,
                    case when moved_kinds[m.n] = 'sleep' then now else moved_sleeps[m.n] end,
                    moved_rollbacks[m.n],
                    moved_results[m.n],
                    moved_errors[m.n]
                from (select array_position(moved_ids, r.id) as n offset 0) as m
            ),
            worker = null,
            claim_id = null,
            updated_at = now
        where r.id = any(array(
            select m.id
            from unnest(moved_ids, moved_states) as m (id, state)
            where m.state is not null
        ));
    end if;

    if has_more then
        for one in
            select ids[m.n] as id, m.consumed, m.waits, m."values"
            from json_to_recordset(moved::json) as m (n integer, consumed json, waits json, "values" json)
            where is_written[m.n]
        loop
            if one.consumed is not null then
                with taken as (
                    delete from inbox as i
                    where i.run_id = one.id
                        and i.number = any(array(select t.n::bigint from json_array_elements_text(one.consumed) as t (n)))
                    returning i.kind, i.ref
                )
                insert into receipts (run_id, message_id, at)
                select one.id, t.ref, now
                from taken as t
                where t.kind = 'message' and t.ref is not null
                on conflict (run_id, message_id) do update
                set at = excluded.at;
            end if;
            if one.waits is not null then
                delete from waits where run_id = one.id;
                if json_array_length(one.waits) > 0 then
                    perform await_v1(json_build_array(json_build_object('run_id', one.id, 'waits', one.waits)));
                end if;
            end if;
            if one."values" is not null then
                insert into run_values (run_id, name, value)
                select one.id, v.key, v.value
                from json_each_text(one."values") as v
                on conflict (run_id, name) do update
                set value = excluded.value;
            end if;
        end loop;
    end if;

    if gained is not null then
        insert into entries as known (
            run_id, location, kind, state, position, attempts, since, started_at, finished_at, retry_at, token,
            has_undo, ref, error, result
        )
        select
            ids[e.n], e.location, e.kind, e.state, coalesce(e.position, 0), coalesce(e.attempts, 0),
            coalesce(e.since, 0), coalesce(e.started_at, 0), e.finished_at, e.retry_at, tokens[e.n],
            coalesce(e.has_undo, false), e.ref, e.error::text, e.result
        from json_to_recordset(gained::json) as e (
            n integer, location text, kind text, state text, position bigint, attempts integer, since bigint,
            started_at bigint, finished_at bigint, retry_at bigint, has_undo boolean, ref text, error json, result text
        )
        where is_written[e.n]
        on conflict (run_id, location) do update
        set kind = excluded.kind, state = excluded.state, position = excluded.position, attempts = excluded.attempts,
            since = excluded.since, started_at = excluded.started_at, finished_at = excluded.finished_at,
            retry_at = excluded.retry_at, token = excluded.token, has_undo = excluded.has_undo, ref = excluded.ref,
            error = excluded.error, result = excluded.result
        where known.position = 0
            and (excluded.position > 0 or excluded.attempts > known.attempts);
    end if;

    if unseen = 0 and true = all(is_written) then
        return json_build_object('now', now)::text;
    end if;
    return json_build_object(
        'now', now,
        'verdicts', (
            select json_agg(
                case
                    when is_written[c.n] then json_build_object(
                        'is', 'written',
                        'seen', r.arrivals,
                        'arrivals', case
                            when r.arrivals > c.seen and r.worker is not null then newer_v1(r.id, c.seen)
                            else '[]'
                        end
                    )
                    when r.id is null or r.token <> c.token then json_build_object('is', 'lost')
                    when r.worker is null then json_build_object('is', 'applied')
                    else json_build_object('is', 'other')
                end
                order by c.n
            )
            from unnest(ids, tokens, seens) with ordinality as c (id, token, seen, n)
            left join lateral (
                select r.id, r.token, r.worker, r.arrivals
                from runs as r
                where r.id = c.id
                limit 1
            ) as r on true
        )
    )::text;
end
$$;

-- Write the one entry that a run gained, if the run is still as its holder knew it and nothing has arrived; else nothing
-- is written, and the answer null. Without a batch, and all that goes with one.
create function step_v1(
    of_run text, under bigint, seen bigint, location text, kind text, state text, "position" bigint, attempts integer,
    since bigint, started_at bigint, finished_at bigint, retry_at bigint, has_undo boolean, ref text, error text,
    result text, at bigint
) returns bigint
    language plpgsql
    set search_path from current
    set enable_seqscan = off
    set cpu_index_tuple_cost = 1
    as $$
#variable_conflict use_column
begin
    perform
    from runs as r
    where r.id = of_run
        and r.token = under
        and coalesce(r.worker, '') <> ''
        and not r.is_pausing
        and r.arrivals = step_v1.seen
    for no key update;
    if not found then
        return null;
    end if;
    insert into entries as known (
        run_id, location, kind, state, position, attempts, since, started_at, finished_at, retry_at, token, has_undo,
        ref, error, result
    )
    values (
        of_run, step_v1.location, step_v1.kind, step_v1.state, step_v1."position", step_v1.attempts, step_v1.since,
        step_v1.started_at, step_v1.finished_at, step_v1.retry_at, under, step_v1.has_undo, step_v1.ref,
        step_v1.error, step_v1.result
    )
    on conflict (run_id, location) do update
    set kind = excluded.kind, state = excluded.state, position = excluded.position, attempts = excluded.attempts,
        since = excluded.since, started_at = excluded.started_at, finished_at = excluded.finished_at,
        retry_at = excluded.retry_at, token = excluded.token, has_undo = excluded.has_undo, ref = excluded.ref,
        error = excluded.error, result = excluded.result
    where known.position = 0
        and (excluded.position > 0 or excluded.attempts > known.attempts);
    return time_v1(at);
end
$$;

-- End a run that gained nothing more, if it is still as its holder knew it, nothing ever arrived, and nobody must hear of
-- its end; else nothing is written, and the answer null.
create function finish_v1(
    of_run text, under bigint, state text, result text, error text, event text, data text, at bigint
) returns bigint
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set cpu_index_tuple_cost = 1
    as $$
#variable_conflict use_column
declare
    now constant bigint := time_v1(at);
begin
    update runs as r
    set state = finish_v1.state,
        ready_at = null,
        worker = null,
        claim_id = null,
        crashes = 0,
        updated_at = now,
        finished_at = now,
        suspended_at = null,
        rollback = null,
        result = finish_v1.result,
        error = finish_v1.error
    where r.id = of_run
        and r.token = under
        and coalesce(r.worker, '') <> ''
        and not r.is_pausing
        and r.arrivals = 0
        and (r.parent_id is null or r.parent_location is null)
        and not exists (
            select
            from runs as child
            where child.parent_id = of_run and child.on_close = 'cancel' and child.finished_at is null
        );
    if not found then
        return null;
    end if;
    insert into audits (run_id, event, at, data)
    values (of_run, finish_v1.event, now, finish_v1.data);
    return now;
end
$$;

-- Write what runs wait for, each list in its order.
create function await_v1(waiting json) returns void
    language plpgsql
    set search_path from current
    as $$
begin
    insert into waits (run_id, place, location, kind, since, names, deadline, after, count, topic)
    select
        r.run_id, w.place, w.location, w.kind, w.since, coalesce(w.names, '[]')::text, w.deadline,
        coalesce(w.after, 0), coalesce(w.count, 0),
        case when w.kind in ('event', 'slot') then w.names ->> 0 end
    from json_to_recordset(waiting) as r (run_id text, waits json)
    cross join lateral rows from (
        json_to_recordset(r.waits) as (
            location text, kind text, since bigint, names json, deadline bigint, after bigint, count bigint
        )
    ) with ordinality as w (location, kind, since, names, deadline, after, count, place);
end
$$;

create function text_array_v1(list json) returns text[]
    language plpgsql immutable
    as $$
begin
    return (
        select array(select json_array_elements_text(list))
    );
end
$$;

-- How long events of a topic are kept: by its own rule, or that of the closest family that covers it.
create function retention_v1(of_topic text) returns bigint
    language plpgsql stable
    set search_path from current
    as $$
begin
    return (
        select coalesce(
            (
                select t.retention
                from topics as t
                where t.name = of_topic
                    or right(t.name, 1) = '*' and starts_with(of_topic, left(t.name, -1))
                order by t.name = of_topic desc, length(t.name) desc
                limit 1
            ),
            604800000000
        )
    );
end
$$;

-- A member of an object that is put together piece by piece.
create function named_v1(name text, value json) returns text
    language sql immutable
    as $$ select '"' || name || '":' || value $$;

-- Runs and all below them that are cancelled when they end.
create function descendants_v1(of_runs text[]) returns text[]
    language plpgsql stable
    set search_path from current
    as $$
begin
    return (
        with recursive ending (id) as (
            select unnest(of_runs) collate "C"
            union
            select child.id
            from ending
            join runs as child on child.parent_id = ending.id
            where child.on_close = 'cancel' and child.finished_at is null
        )
        select array_agg(e.id)
        from ending as e
    );
end
$$;

-- The first ones that wait for a slot of their group.
create function parked_v1(groups json) returns table (name text, run_id text)
    language plpgsql stable
    set search_path from current
    as $$
begin
    return query
    select g.name, p.run_id
    from json_to_recordset(groups) as g (name text, count bigint)
    cross join lateral (
        select w.run_id
        from waits as w
        where w.topic = g.name and w.kind = 'slot'
        order by w.run_id
        limit g.count
    ) as p;
end
$$;

-- Messages with the ids of the runs they are for, be they addressed by id or by key.
create function addressed_v1(messages json) returns table (run_id text, id text)
    language plpgsql stable
    set search_path from current
    as $$
begin
    return query
    select coalesce(m.run_id, (select r.id from runs as r where r.key = m.key)), m.id
    from json_to_recordset(messages) as m (run_id text, key text, id text);
end
$$;

-- What is wished for of the inboxes of runs; their events in any case.
create function arrivals_v1(w json, locked text[]) returns json
    language plpgsql stable
    set search_path from current
    as $$
begin
    return (
        select coalesce(json_agg(json_build_array(a.run_id, row_to_json(a)) order by a.run_id, a.number), '[]')
        from (
            select i.run_id, i.number
            from json_to_recordset(w -> 'inboxes') as o (run_id text, seen bigint)
            join inbox as i on i.run_id = o.run_id and i.number > o.seen
            union
            select i.run_id, i.number
            from json_to_recordset(w -> 'consumed') as o (run_id text, number bigint)
            join inbox as i on i.run_id = o.run_id and i.number = o.number
            union
            select i.run_id, i.number
            from unnest(locked) as l (id)
            join inbox as i on i.run_id = l.id and i.kind = 'event'
            union
            select i.run_id, i.number
            from addressed_v1(w -> 'messages') as m
            join inbox as i on i.run_id = m.run_id and i.ref = m.id and i.kind = 'message'
        ) as wanted
        join inbox_read as a on a.run_id = wanted.run_id and a.number = wanted.number
    );
end
$$;

-- The events that were emitted before, that runs have in their inboxes and no other gets, that runs have missed, and
-- the first ones of queues that nobody has.
create function events_v1(w json, locked text[], now bigint) returns json
    language plpgsql stable
    set search_path from current
    as $$
begin
    return (
        select coalesce(json_agg(row_to_json(e) order by e.number), '[]')
        from (
            select known.number
            from json_to_recordset(w -> 'events') as x (topic text, id text)
            join events as known on known.topic = x.topic and known.id = x.id
            union
            select i.ref::bigint
            from unnest(locked) as l (id)
            join inbox as i on i.run_id = l.id and i.kind = 'event'
            where i.is_exclusive
            union
            select missed.number
            from json_to_recordset(w -> 'missed') as m (topic text, run_id text, after bigint)
            join runs as r on r.id = m.run_id
            cross join lateral (
                select known.number
                from events as known
                where known.topic = m.topic and known.state = 'open' and known.number > m.after
                    and known.at >= greatest(r.created_at, now - retention_v1(m.topic) + 1)
                order by known.number
                limit 1
            ) as missed
            union
            select pending.number
            from json_to_recordset(w -> 'topics') as t (name text, count bigint)
            cross join lateral (
                select known.number
                from events as known
                where known.topic = t.name and known.state = 'pending'
                order by known.number
                limit t.count
            ) as pending
        ) as wanted
        join events_read as e on e.number = wanted.number
    );
end
$$;

-- Lock what an operation is about, and tell all it may have to know. First the topics, then all runs in one order;
-- everything is read afterwards, so that it is as it stays until the transaction ends.
--
-- `endings` are runs that may end: with them go those of their descendants that end with them, and their parents.
-- `renewals` may begin anew and part with all their children. What is not wished for is not looked at.
create function load_v1(wishes text, at bigint) returns text
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set cpu_tuple_cost = 1
    set cpu_index_tuple_cost = 1
    set jit = off
    as $$
declare
    w constant json := wishes::json;
    bucket record;
    now bigint;
    endings constant text[] := text_array_v1(w -> 'endings');
    renewals constant text[] := text_array_v1(w -> 'renewals');
    closing text[] := '{}';
    locked text[] := text_array_v1(w -> 'runs');
    found text[];
begin
    if w -> 'buckets' is not null then
        for bucket in
            select b.class, b.bucket, b.is_exclusive
            from json_to_recordset(w -> 'buckets') as b (class integer, bucket integer, is_exclusive boolean)
            order by b.class, b.bucket
        loop
            if bucket.is_exclusive then
                perform pg_advisory_xact_lock(bucket.class, bucket.bucket);
            else
                perform pg_advisory_xact_lock_shared(bucket.class, bucket.bucket);
            end if;
        end loop;
    end if;

    -- Who else is concerned. This is only a first look: whoever turns out to be missing makes all begin anew.
    if cardinality(endings) > 0 then
        closing := descendants_v1(endings);
        locked := locked || closing || array(
            select r.parent_id
            from unnest(closing) as c (id)
            join runs as r on r.id = c.id
            where r.parent_id is not null
        );
    end if;
    if cardinality(renewals) > 0 then
        locked := locked || array(
            select child.id
            from unnest(renewals) as p (id)
            join runs as child on child.parent_id = p.id
            where child.finished_at is null
        );
    end if;
    if w -> 'keys' is not null then
        locked := locked || array(
            select r.id
            from unnest(text_array_v1(w -> 'keys')) as k (key)
            join runs as r on r.key = k.key
        );
    end if;
    if w -> 'emitted' is not null then
        locked := locked || array(
            select waiting.run_id
            from unnest(text_array_v1(w -> 'emitted')) as t (topic)
            join waits as waiting on waiting.topic = t.topic and waiting.kind = 'event'
        );
    end if;
    if w -> 'groups' is not null then
        locked := locked || array(select p.run_id from parked_v1(w -> 'groups') as p);
    end if;
    locked := array(select distinct l.id from unnest(locked) as l (id));
    perform from runs where id = any(locked) order by id for no key update;
    now := time_v1(at);

    found := array['"now":' || now, '"closing":' || array_to_json(closing)]
        || named_v1('runs', (
            select coalesce(json_agg(row_to_json(r) order by r.created_at, r.id), '[]')
            from unnest(locked) as l (id)
            join runs_read as r on r.id = l.id
        ))
        || named_v1('waits', (
            select coalesce(
                json_agg(json_build_array(waiting.run_id, row_to_json(waiting)) order by waiting.run_id, waiting.place),
                '[]'
            )
            from unnest(locked) as l (id)
            join waits_read as waiting on waiting.run_id = l.id
        ))
        || named_v1('arrivals', arrivals_v1(w, locked));
    if cardinality(closing) + cardinality(renewals) > 0 then
        found := found
            || named_v1('children', (
                select coalesce(
                    json_agg(json_build_array(child.parent_id, child.id) order by child.created_at, child.id), '[]'
                )
                from (select unnest(closing) union select unnest(renewals)) as l (id)
                join runs as child on child.parent_id = l.id
                where child.finished_at is null
                    and (l.id = any(closing) and child.on_close = 'cancel' or l.id = any(renewals))
            ))
            || named_v1('undo', (
                select coalesce(json_agg(json_build_array(
                    c.id,
                    exists (select from entries as e where e.run_id = c.id and e.has_undo),
                    (select coalesce(max(e.position), 0) from entries as e where e.run_id = c.id)
                )), '[]')
                from unnest(closing) as c (id)
            ));
    end if;
    if w -> 'groups' is not null then
        found := found || named_v1('parked', (
            select coalesce(json_agg(json_build_array(p.name, p.run_id) order by p.name, p.run_id), '[]')
            from parked_v1(w -> 'groups') as p
        ));
    end if;
    if w -> 'locations' is not null or w -> 'scopes' is not null then
        found := found || named_v1('entries', (
            select coalesce(json_agg(json_build_array(e.run_id, row_to_json(e))), '[]')
            from (
                select e.*
                from json_to_recordset(w -> 'locations') as l (run_id text, location text)
                join entries_read as e on e.run_id = l.run_id and e.location = l.location
                union all
                select e.*
                from json_to_recordset(w -> 'scopes') as s (run_id text, scope text)
                join entries_read as e on e.run_id = s.run_id
                    and (e.location = s.scope or e.location > s.scope || '/' and e.location < s.scope || '0')
            ) as e
        ));
    end if;
    if w -> 'histories' is not null then
        found := found || named_v1('histories', (
            select coalesce(json_agg(json_build_array(r.id, history_v1(r.id))), '[]')
            from unnest(text_array_v1(w -> 'histories')) as h (id)
            join runs as r on r.id = h.id
        ));
    end if;
    if w -> 'messages' is not null then
        found := found || named_v1('receipts', (
            select coalesce(json_agg(json_build_array(r.run_id, r.message_id, r.at)), '[]')
            from addressed_v1(w -> 'messages') as m
            join receipts as r on r.run_id = m.run_id and r.message_id = m.id
        ));
    end if;
    if w -> 'audits' is not null then
        found := found || named_v1('audits', (
            select coalesce(json_agg(json_build_object(
                'run_id', a.run_id, 'event', a.event, 'at', a.at, 'data', coalesce(a.data, '{}')::json
            ) order by a.number), '[]')
            from unnest(text_array_v1(w -> 'audits')) as l (id)
            join audits as a on a.run_id = l.id
            where a.event not in ('claimed', 'suspended')
        ));
    end if;
    if w -> 'topics' is not null or w -> 'events' is not null or w -> 'inboxes' is not null then
        found := found
            || named_v1('topics', (select coalesce(json_agg(row_to_json(t)), '[]') from topics as t))
            || named_v1('events', events_v1(w, locked, now));
    end if;
    if w -> 'new_events' is not null then
        found := found || named_v1('event_numbers', (
            select json_agg(nextval(pg_get_serial_sequence('events', 'number')))
            from generate_series(1, (w ->> 'new_events')::integer)
        ));
    end if;
    if w -> 'letters' is not null then
        found := found || named_v1('letters', (
            select coalesce(json_agg(row_to_json(l) order by l.number), '[]')
            from json_array_elements_text(w -> 'letters') as n (number)
            join letters as l on l.number = n.number::bigint
        ));
    end if;
    return '{' || array_to_string(found, ',') || '}';
end
$$;

-- Write what an operation has changed. Everything it is about is locked by the same transaction.
create function apply_v1(changes text, now bigint) returns void
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set cpu_tuple_cost = 1
    set cpu_index_tuple_cost = 1
    set jit = off
    as $$
declare
    c constant json := changes::json;
    made bigint;
begin
    if c -> 'runs' is not null then
        update runs as r
        set state = n.state,
            ready_at = instant(n.ready_at),
            worker = n.worker,
            token = coalesce(n.token, 0),
            claim_id = n.claim_id,
            crashes = coalesce(n.crashes, 0),
            arrivals = coalesce(n.arrivals, 0),
            attempt = coalesce(n.attempt, 1),
            generation = coalesce(n.generation, 1),
            key = n.key,
            parent_location = n.parent_location,
            start_at = n.start_at,
            updated_at = n.updated_at,
            first_claimed_at = n.first_claimed_at,
            finished_at = n.finished_at,
            suspended_at = n.suspended_at,
            rollback = n.rollback,
            is_pausing = coalesce(n.is_pausing, false),
            python = n.python,
            error = n.error::text,
            continued = n.continued,
            result = n.result
        from json_to_recordset(c -> 'runs') as n (
            id text, state text, ready_at bigint, worker text, token bigint, claim_id text, crashes integer,
            arrivals bigint, attempt integer, generation integer, key text, parent_location text, start_at bigint,
            updated_at bigint, first_claimed_at bigint, finished_at bigint, suspended_at bigint, rollback text,
            is_pausing boolean, python text, error json, continued text, result text
        )
        where r.id = n.id;
    end if;
    if c -> 'made' is not null then
        insert into runs (
            id, type, state, priority, ready_at, worker, token, claim_id, crashes, arrivals, attempt, generation, key,
            parent_id, parent_location, on_close, created_at, start_at, updated_at, first_claimed_at, finished_at,
            suspended_at, rollback, is_pausing, python, tags, options, error, payload, continued, result
        )
        select
            n.id, n.type, n.state, coalesce(n.priority, 100), instant(n.ready_at), n.worker, coalesce(n.token, 0),
            n.claim_id, coalesce(n.crashes, 0), coalesce(n.arrivals, 0), coalesce(n.attempt, 1),
            coalesce(n.generation, 1), n.key, n.parent_id, n.parent_location, coalesce(n.on_close, 'abandon'),
            n.created_at, n.start_at, n.updated_at, n.first_claimed_at, n.finished_at, n.suspended_at, n.rollback,
            coalesce(n.is_pausing, false), n.python, n.tags, n.options::text, n.error::text, n.payload, n.continued,
            n.result
        from json_to_recordset(c -> 'made') as n (
            id text, type text, state text, priority smallint, ready_at bigint, worker text, token bigint,
            claim_id text, crashes integer, arrivals bigint, attempt integer, generation integer, key text,
            parent_id text, parent_location text, on_close text, created_at bigint, start_at bigint,
            updated_at bigint, first_claimed_at bigint, finished_at bigint, suspended_at bigint, rollback text,
            is_pausing boolean, python text, tags jsonb, options json, error json, payload text, continued text,
            result text
        )
        order by n.key, n.id
        on conflict do nothing;
        get diagnostics made = row_count;
        if made < json_array_length(c -> 'made') then
            raise exception 'an id or a key is taken' using errcode = 'HF001';
        end if;
    end if;

    if c -> 'cleared' is not null then
        delete from entries where run_id = any(text_array_v1(c -> 'cleared'));
    end if;
    if c -> 'dropped' is not null then
        delete from entries as e
        using json_to_recordset(c -> 'dropped') as d (run_id text, location text)
        where e.run_id = d.run_id and e.location = d.location;
    end if;
    if c -> 'entries' is not null then
        insert into entries (
            run_id, location, kind, state, position, attempts, since, started_at, finished_at, retry_at, token,
            has_undo, ref, error, result
        )
        select
            e.run_id, e.location, e.kind, e.state, coalesce(e.position, 0), coalesce(e.attempts, 0),
            coalesce(e.since, 0), coalesce(e.started_at, 0), e.finished_at, e.retry_at, e.token,
            coalesce(e.has_undo, false), e.ref, e.error::text, e.result
        from json_to_recordset(c -> 'entries') as e (
            run_id text, token bigint, location text, kind text, state text, position bigint, attempts integer,
            since bigint, started_at bigint, finished_at bigint, retry_at bigint, has_undo boolean, ref text,
            error json, result text
        )
        on conflict (run_id, location) do update
        set kind = excluded.kind, state = excluded.state, position = excluded.position, attempts = excluded.attempts,
            since = excluded.since, started_at = excluded.started_at, finished_at = excluded.finished_at,
            retry_at = excluded.retry_at, token = excluded.token, has_undo = excluded.has_undo, ref = excluded.ref,
            error = excluded.error, result = excluded.result;
    end if;

    if c -> 'emptied' is not null then
        delete from inbox where run_id = any(text_array_v1(c -> 'emptied'));
    end if;
    if c -> 'consumed' is not null then
        delete from inbox as i
        using json_to_recordset(c -> 'consumed') as d (run_id text, number bigint)
        where i.run_id = d.run_id and i.number = d.number;
    end if;
    if c -> 'arrived' is not null then
        insert into inbox (run_id, number, kind, name, at, is_exclusive, ref, family, state, error, payload)
        select
            a.run_id, a.number, a.kind, a.name, a.at, coalesce(a.is_exclusive, false), a.ref, a."group", a.state,
            a.error::text, a.payload
        from json_to_recordset(c -> 'arrived') as a (
            run_id text, number bigint, kind text, name text, at bigint, is_exclusive boolean, ref text, "group" text,
            state text, error json, payload text
        );
    end if;
    if c -> 'waits' is not null then
        delete from waits as w
        using json_to_recordset(c -> 'waits') as n (run_id text)
        where w.run_id = n.run_id;
        perform await_v1(c -> 'waits');
    end if;

    if c -> 'values' is not null then
        insert into run_values (run_id, name, value)
        select v.run_id, v.name, v.value
        from json_to_recordset(c -> 'values') as v (run_id text, name text, value text)
        on conflict (run_id, name) do update
        set value = excluded.value;
    end if;
    if c -> 'receipts' is not null then
        insert into receipts (run_id, message_id, at)
        select r.run_id, r.message_id, r.at
        from json_to_recordset(c -> 'receipts') as r (run_id text, message_id text, at bigint)
        on conflict (run_id, message_id) do update
        set at = excluded.at;
    end if;
    if c -> 'replies' is not null then
        insert into replies (run_id, message_id, payload, at)
        select r.run_id, r.message_id, r.payload, r.at
        from json_to_recordset(c -> 'replies') as r (run_id text, message_id text, payload text, at bigint)
        on conflict (run_id, message_id) do nothing;
    end if;

    if c -> 'forgotten' is not null then
        delete from events
        using json_array_elements_text(c -> 'forgotten') as f (number)
        where events.number = f.number::bigint;
    end if;
    if c -> 'events' is not null then
        insert into events (number, topic, id, payload, at, reached, state, holder, taken_at)
        select e.number, e.topic, e.id, e.payload, e.at, e.reached, e.state, e.holder, e.taken_at
        from json_to_recordset(c -> 'events') as e (
            number bigint, topic text, id text, payload text, at bigint, reached bigint, state text, holder text,
            taken_at bigint
        )
        on conflict (number) do update
        set reached = excluded.reached, state = excluded.state, holder = excluded.holder,
            taken_at = excluded.taken_at;
    end if;
    if c -> 'letters' is not null then
        insert into letters (id, topic, run_id, name, payload, at, reason)
        select l.id, l.topic, l.run_id, l.name, l.payload, l.at, l.reason
        from rows from (
            json_to_recordset(c -> 'letters') as (
                id text, topic text, run_id text, name text, payload text, at bigint, reason text
            )
        ) with ordinality as l (id, topic, run_id, name, payload, at, reason, place)
        order by l.place;
    end if;
    if c -> 'purged' is not null then
        delete from letters
        using json_array_elements_text(c -> 'purged') as p (number)
        where letters.number = p.number::bigint;
    end if;
    if c -> 'facts' is not null then
        insert into audits (run_id, event, at, data)
        select f.run_id, f.event, f.at, f.data::text
        from rows from (
            json_to_recordset(c -> 'facts') as (run_id text, event text, at bigint, data json)
        ) with ordinality as f (run_id, event, at, data, place)
        order by f.place;
    end if;
end
$$;
