-- Create runs, or none if an id or a key is taken. `leased` names a worker that gets those that are ready now. The
-- answer names the types that are disabled or have limits. Their runs are not leased here and wait for a claim.
create function create_v1(intents text, leased text, at bigint) returns text
    {{operation}}
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
                id text, type text, payload text, key text, priority smallint, start_at bigint, delay bigint,
                tags jsonb, parent_id text, parent_location text, on_close text, options json, retention bigint
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
