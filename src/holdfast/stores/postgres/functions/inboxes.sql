-- Inboxes: the messages and events that have arrived for a run.

-- Returns the arrivals that an operation asks for, from the inboxes of locked runs. All their events are included.
create function arrivals_v1(w json, locked text[]) returns json
    {{reader}}
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
            from addressed_v1(w -> 'messages', locked) as m
            join inbox as i on i.run_id = m.run_id and i.ref = m.id and i.kind = 'message'
        ) as wanted
        join inbox_read as a on a.run_id = wanted.run_id and a.number = wanted.number
    );
end
$$;

-- Returns the arrivals in the inbox of a run after a number.
create function newer_v1(of_run text, seen bigint) returns json
    {{reader}}
    as $$
begin
    return (
        select coalesce(json_agg(row_to_json(a) order by a.number), '[]')
        from inbox_read as a
        where a.run_id = of_run and a.number > seen
    );
end
$$;

-- Returns the messages to locked runs, with the ids of these runs. A message names its run by id or by key.
create function addressed_v1(messages json, locked text[]) returns table (run_id text, id text)
    {{reader}}
    as $$
begin
    return query
    select m.run_id, m.id
    from (
        select coalesce(m.run_id, (select r.id from runs as r where r.key = m.key)) as run_id, m.id
        from json_to_recordset(messages) as m (run_id text, key text, id text)
    ) as m
    where m.run_id = any(locked);
end
$$;
