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
