-- Returns the events that an operation may need: those it emits again, those of its dead letters, queue events in the
-- inboxes of locked runs, the first event that each run has missed, and the first pending events of queues.
create function events_v1(w json, locked text[], now bigint) returns json
    {{reader}}
    as $$
begin
    return (
        select coalesce(json_agg(row_to_json(e) order by e.number), '[]')
        from (
            select known.number
            from json_to_recordset(w -> 'events') as x (topic text, id text)
            join events as known on known.topic = x.topic and known.id = x.id
            union
            select known.number
            from json_array_elements_text(w -> 'letters') as n (number)
            join letters as l on l.number = n.number::bigint
            join events as known on known.topic = l.topic and known.id = l.id
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
        join events as e on e.number = wanted.number
    );
end
$$;
