-- Limits: the runs that have slots, and those that wait for them.

-- Returns the slots of limits of types, with the runs that have them: the slots of the type, of its rate, and per tag.
-- The names of slots per tag begin with the name of the type.
create function slots_v1(of_types text[]) returns table (name text, run_id text)
    language plpgsql stable
    as $$
begin
    return query
    select s.name, s.run_id
    from unnest(of_types) as t (type)
    cross join lateral (
        select s.name, s.run_id
        from slots as s
        where s.name in ('type:' || t.type, 'rate:' || t.type)
        union all
        select s.name, s.run_id
        from slots as s
        where s.name >= 'type:' || t.type || ' ' and s.name < 'type:' || t.type || '!'
    ) as s;
end
$$;

-- Returns the runs of types that are held or have slots.
create function counted_v1(of_types text[]) returns text[]
    language plpgsql stable
    as $$
begin
    return array(
        select held.id
        from unnest(of_types) as t (type)
        cross join lateral (
            select r.id
            from runs as r
            where r.type = t.type and r.worker is not null
            offset 0
        ) as held
        union all
        select s.run_id
        from slots_v1(of_types) as s
    );
end
$$;

-- Returns the first runs that wait for slots: of each queue the first `count` by priority, rank and time. In the
-- priority of the last of these, it adds the first `count` of each later rank, because the next slot may go to any
-- rank. `waits_slot`
create function parked_v1(groups json) returns table (name text, after bigint, since bigint, run_id text)
    {{reader}}
    as $$
begin
    return query
    select g.name, p.after, p.since, p.run_id collate "C"
    from json_to_recordset(groups) as g (name text, count bigint)
    cross join lateral (
        select w.after, w.since, w.run_id
        from waits as w
        where w.topic = g.name and w.kind = 'slot'
        order by w.after, w.since, w.run_id
        limit g.count
    ) as p
    union all
    select g.name, p.after, p.since, p.run_id collate "C"
    from json_to_recordset(groups) as g (name text, count bigint)
    cross join lateral (
        select w.after
        from waits as w
        where w.topic = g.name and w.kind = 'slot'
        order by w.after, w.since, w.run_id
        offset g.count - 1
        limit 1
    ) as last
    cross join lateral generate_series(
        last.after + 1, last.after - last.after % {{ranks}} + {{ranks}} - 1
    ) as beside (after)
    cross join lateral (
        select w.after, w.since, w.run_id
        from waits as w
        where w.topic = g.name and w.kind = 'slot' and w.after = beside.after
        order by w.since, w.run_id
        limit g.count
    ) as p;
end
$$;

-- Returns the runs that wait because of limits of types. `waits_slot`
create function parked_of_v1(of_types text[]) returns text[]
    language plpgsql stable
    as $$
begin
    return array(
        select p.run_id
        from unnest(of_types) as t (type)
        cross join lateral (
            select w.run_id
            from waits as w
            where w.topic in ('type:' || t.type, 'rate:' || t.type)
                and w.kind = 'slot' and w.location = '{{limit_location}}'
            union all
            select w.run_id
            from waits as w
            where w.topic >= 'type:' || t.type || ' ' and w.topic < 'type:' || t.type || '!'
                and w.kind = 'slot' and w.location = '{{limit_location}}'
        ) as p
    );
end
$$;
