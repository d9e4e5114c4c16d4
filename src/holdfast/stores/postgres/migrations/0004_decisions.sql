-- Decisions: what is decided by the operations of the memory store, on a working set that is loaded here, and written
-- when they are through. `0002_leases.sql` says what all functions have in common.

create function text_array_v1(list json) returns text[]
    language plpgsql immutable
    as $$
begin
    return (
        select array(select json_array_elements_text(list))
    );
end
$$;

-- The rule for a topic: its own, or that of the closest family that covers it.
create function rule_v1(of_topic text) returns topics
    language plpgsql stable
    set search_path from current
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

-- How long events of a topic are kept.
create function retention_v1(of_topic text) returns bigint
    language plpgsql stable
    set search_path from current
    as $$
begin
    return coalesce((rule_v1(of_topic)).retention, 604800000000);
end
$$;

-- How events of a topic are delivered.
create function mode_v1(of_topic text) returns text
    language plpgsql stable
    set search_path from current
    as $$
begin
    return coalesce((rule_v1(of_topic)).mode, 'fanout');
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
            cross join lateral (
                select r.id
                from runs as r
                where r.parent_id = ending.id and r.finished_at is null
                    and r.on_close = 'cancel'
                offset 0
            ) as child
        )
        select array_agg(e.id)
        from ending as e
    );
end
$$;

-- Messages to runs that are locked, with the ids of those, be they addressed by id or by key.
create function addressed_v1(messages json, locked text[]) returns table (run_id text, id text)
    language plpgsql stable
    set search_path from current
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
            from addressed_v1(w -> 'messages', locked) as m
            join inbox as i on i.run_id = m.run_id and i.ref = m.id and i.kind = 'message'
        ) as wanted
        join inbox_read as a on a.run_id = wanted.run_id and a.number = wanted.number
    );
end
$$;

-- The events that were emitted before or became dead letters, that runs have in their inboxes and no other gets, that runs have missed, and
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
        join events_read as e on e.number = wanted.number
    );
end
$$;

-- Those who wait for events of topics: of a queue the first ones, for only one of them gets an event; else all.
create function waiting_v1(emitted json) returns table (topic text, run_id text, is_queue boolean, wanted bigint)
    language plpgsql stable
    set search_path from current
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

