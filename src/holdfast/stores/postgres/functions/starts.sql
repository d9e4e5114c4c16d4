-- Starts: how runs are created.

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
        state, ready_at, worker, token, claim_id, created_at, start_at, updated_at, first_claimed_at, python,
        {{intent_columns}}
    )
    select
        case when n.is_leased then 'running' else 'pending' end,
        instant(case when n.is_leased then now + (lease ->> 'lease')::bigint else n.begin_at end),
        case when n.is_leased then lease ->> 'worker' end,
        n.is_leased::integer,
        case when n.is_leased then lease ->> 'claim_id' end,
        now,
        n.begin_at,
        now,
        case when n.is_leased then now end,
        case when n.is_leased then lease ->> 'python' end,
        {{intent_values}}
    from (
        select *, lease is not null and t.begin_at <= now and t.type <> all(ruled) as is_leased
        from (
            select *, greatest(now, coalesce(r.start_at, 0)) + coalesce(r.delay, 0) as begin_at
            from json_to_recordset(wanted) as r (start_at bigint, delay bigint, {{intent_record}})
        ) as t
    ) as n
    order by n.key collate "C", n.id collate "C"
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

-- Returns a time-ordered UUID (version 7), like those that Python makes.
create function new_id() returns text
    language sql volatile parallel safe
    as $$
        select substr(time.hex, 1, 8) || '-' || substr(time.hex, 9) || '-7' || substr(noise.hex, 14, 3)
            || '-' || substr(noise.hex, 17, 4) || '-' || substr(noise.hex, 21)
        from (select lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') as hex) as time,
            (select replace(gen_random_uuid()::text, '-', '') as hex) as noise
    $$;
