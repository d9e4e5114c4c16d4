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
        where a.run_id = c.id and a.event in ({{routine}})
        order by a.number desc
        offset {{routine_kept}}
        limit 1
    ) as last
    where old.run_id = c.id
        and old.number <= last.number
        and old.event in ({{routine}});
end
$$;
