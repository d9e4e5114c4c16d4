-- Events: the rules of topics, and which runs get an event.

-- Returns the rule for a topic: its own, or the rule of the closest family that covers it.
create function rule_v1(of_topic text) returns topics
    {{reader}}
    as $$
declare
    rule topics;
begin
    select t.*
    into rule
    from topics as t
    where t.name = of_topic
        or right(t.name, 1) = '*' and starts_with(of_topic, left(t.name, -1))
    order by t.name = of_topic desc, length(t.name) desc
    limit 1;
    return rule;
end
$$;

-- Returns the delivery mode of a topic.
create function mode_v1(of_topic text) returns text
    {{reader}}
    as $$
begin
    return coalesce((rule_v1(of_topic)).mode, 'fanout');
end
$$;

-- Returns the retention of events of a topic.
create function retention_v1(of_topic text) returns bigint
    {{reader}}
    as $$
begin
    return coalesce((rule_v1(of_topic)).retention, {{event_retention}});
end
$$;

-- Returns the runs that wait for events of topics. Of a queue it returns only the first `count`, because only one run
-- gets each event.
create function waiting_v1(emitted json) returns table (topic text, run_id text, is_queue boolean, wanted bigint)
    {{reader}}
    as $$
begin
    return query
    select t.name, waiting.run_id, t.is_queue, t.count
    from (
        select e.name, e.count, mode_v1(e.name) = 'queue' as is_queue
        from json_to_recordset(emitted) as e (name text, count bigint)
        offset 0
    ) as t
    cross join lateral (
        select x.run_id
        from waits as x
        where x.topic = t.name and x.kind = 'event'
        order by x.since, x.run_id
        limit case when t.is_queue then t.count end
    ) as waiting;
end
$$;

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
