-- Lock the rows that an operation concerns, and read everything that it may need. Flows are locked first, then topics,
-- then types with limits, then runs, each kind in one order. Rows are read after they are locked, so they stay true until the
-- transaction ends. Only the choice of the runs to lock is read before. If one turns out to be missing, the operation
-- starts over.
--
-- - `endings`: runs that may end. Their descendants that end with them are loaded too, and their parents.
-- - `renewals`: runs that may continue as new, and part with all their children.
-- - `due`: runs that may be claimed. Runs that another transaction has locked are skipped.
-- - `limits`: types whose limits change. With `is_ruling` the transaction waits for claims that have begun, and no
--   worker can claim until it ends.
-- - `lifted`: types that no longer have limits. All runs that wait because of these limits are locked, but not loaded.
--
-- Parts that are not asked for cost nothing.
create function load_v1(request text, at bigint) returns text
    {{operation}}
    set enable_bitmapscan = off
    as $$
declare
    asked constant json := request::json;
    w record;
    bucket record;
    now bigint;
    endings text[];
    renewals text[];
    closing text[] := '{}';
    types text[];
    locked text[];
    awake text[] := '{}';
    found text[];
begin
    select *
    into w
    from json_to_record(asked) as w (
        endings json, renewals json, types json, runs json, is_ruling boolean, buckets json, keys json,
        emitted json, groups json, limits json, lifted json, due json, locations json, scopes json, histories json,
        messages json, audits json, topics json, events json, inboxes json, new_events integer, letters json, waits json,
        flows json
    );
    endings := text_array_v1(w.endings);
    renewals := text_array_v1(w.renewals);
    types := text_array_v1(w.types);
    locked := text_array_v1(w.runs);
    if w.is_ruling is not null then
        lock table types in exclusive mode;
    end if;
    if w.flows is not null then
        -- Only one transaction at a time decides over flows, and whether a type is one. Reads go on.
        lock table flows in share row exclusive mode;
    end if;
    if w.buckets is not null then
        for bucket in
            select b.class, b.bucket, b.is_exclusive
            from json_to_recordset(w.buckets) as b (class integer, bucket integer, is_exclusive boolean)
            order by b.class, b.bucket
        loop
            if bucket.is_exclusive then
                perform pg_advisory_xact_lock(bucket.class, bucket.bucket);
            else
                perform pg_advisory_xact_lock_shared(bucket.class, bucket.bucket);
            end if;
        end loop;
    end if;

    if cardinality(types) > 0 then
        lock table types in row share mode;
        perform
        from types as t
        where t.name = any(types) and t.is_limited
        order by t.name
        for no key update;
    end if;

    -- Find the other runs that the operation concerns.
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
            cross join lateral (
                select r.id
                from runs as r
                where r.parent_id = p.id and r.finished_at is null
                offset 0
            ) as child
        );
    end if;
    if w.keys is not null then
        locked := locked || array(
            select r.id
            from unnest(text_array_v1(w.keys)) as k (key)
            join runs as r on r.key = k.key
        );
    end if;
    if w.emitted is not null then
        locked := locked || array(select e.run_id from waiting_v1(w.emitted) as e);
    end if;
    if w.groups is not null then
        locked := locked || array(select p.run_id from parked_v1(w.groups) as p);
    end if;
    if w.limits is not null then
        locked := locked || counted_v1(text_array_v1(w.limits));
    end if;
    if w.lifted is not null then
        -- Locked in the same order, but not loaded: there may be very many.
        perform
        from runs as r
        where r.id = any(locked || parked_of_v1(text_array_v1(w.lifted)))
        order by r.id
        for no key update;
    end if;
    -- A run that was created only now is left out, because it can no longer be locked in order.
    locked := array(select r.id from runs as r where r.id = any(locked) order by r.id for no key update);
    if w.due is not null then
        -- Last of all, because these are locked in no order: a transaction that has them must not wait for other locks.
        locked := locked || array(
            select r.id
            from runs as r
            where r.id <> all(locked)
                and r.id = any(array(
                    select c.id
                    from json_to_recordset(w.due) as d (types json, count integer, suspects integer)
                    cross join lateral due_v1(text_array_v1(d.types), instant(time_v1(at)), d.count, d.suspects) as c
                ))
            for no key update skip locked
        );
    end if;
    now := time_v1(at);
    if cardinality(closing) > 0 then
        -- The waits of a parent matter only while it is asleep (`rules.is_asleep`). A parent may wait for thousands of
        -- children, and each batch of them that ends would load all these waits again.
        awake := array(
            select distinct parent.id
            from unnest(closing) as c (id)
            join runs as r on r.id = c.id
            join runs as parent on parent.id = r.parent_id
            where (parent.state <> 'suspended' or parent.worker is not null or parent.ready_at <= instant(now))
                and parent.id = any(locked)
                and parent.id <> all(text_array_v1(w.runs) || text_array_v1(w.waits) || closing)
        );
    end if;

    found := array['"now":' || now, '"closing":' || array_to_json(closing), '"awake":' || array_to_json(awake)]
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
            where l.id <> all(awake)
        ))
        || named_v1('arrivals', case when w.due is null then arrivals_v1(asked, locked) else '[]' end);
    if cardinality(types) > 0 then
        found := found
            || named_v1('types', (
                select coalesce(json_agg(json_build_array(row_to_json(t), json_of(k.rate_window))), '[]')
                from types_read as t
                join types as k on k.name = t.name
                where t.name = any(types)
            ))
            || named_v1('slots', (
                select coalesce(json_agg(json_build_array(s.name, s.count)), '[]')
                from (
                    select s.name, count(*) as count
                    from slots_v1(types) as s
                    group by s.name
                ) as s
            ));
    end if;
    if w.limits is not null then
        found := found || named_v1('queues', (
            select coalesce(json_agg(distinct waiting.topic), '[]')
            from unnest(text_array_v1(w.limits)) as l (type)
            join waits as waiting on waiting.kind = 'slot'
                and waiting.topic >= 'type:' || l.type || ' ' and waiting.topic < 'type:' || l.type || '!'
        ));
    end if;
    if cardinality(closing) + cardinality(renewals) > 0 then
        found := found
            || named_v1('children', (
                select coalesce(
                    json_agg(json_build_array(child.parent_id, child.id) order by child.created_at, child.id), '[]'
                )
                from (
                    select l.id, bool_or(l.is_renewal) as is_renewal
                    from (
                        select unnest(closing) as id, false as is_renewal
                        union all
                        select unnest(renewals), true
                    ) as l
                    group by l.id
                ) as l
                cross join lateral (
                    select r.parent_id, r.id, r.created_at
                    from runs as r
                    where r.parent_id = l.id and r.finished_at is null
                        and (l.is_renewal or r.on_close = 'cancel')
                    offset 0
                ) as child
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
    if w.keys is not null then
        found := found || named_v1('keys', (
            select coalesce(json_agg(json_build_array(r.key, r.id)), '[]')
            from unnest(text_array_v1(w.keys)) as k (key)
            join runs as r on r.key = k.key
        ));
    end if;
    if w.emitted is not null then
        found := found || named_v1('crowded', (
            select coalesce(json_agg(crowd.topic), '[]')
            from (
                select e.topic
                from waiting_v1(w.emitted) as e
                where e.is_queue
                group by e.topic, e.wanted
                having count(*) >= e.wanted
            ) as crowd
        ));
    end if;
    if w.groups is not null then
        found := found || named_v1('parked', (
            select coalesce(json_agg(
                json_build_array(p.name, json_build_array(p.after, p.since, p.run_id))
                order by p.name, p.after, p.since, p.run_id
            ), '[]')
            from parked_v1(w.groups) as p
        ));
    end if;
    if w.locations is not null or w.scopes is not null then
        found := found || named_v1('entries', (
            select coalesce(json_agg(json_build_array(e.run_id, row_to_json(e))), '[]')
            from (
                select e.*
                from json_to_recordset(w.locations) as l (run_id text, location text)
                join entries_read as e on e.run_id = l.run_id and e.location = l.location
                union all
                select e.*
                from json_to_recordset(w.scopes) as s (run_id text, scope text)
                join entries_read as e on e.run_id = s.run_id
                    and (e.location = s.scope or e.location > s.scope || '/' and e.location < s.scope || '0')
            ) as e
        ));
    end if;
    if w.histories is not null then
        found := found || named_v1('histories', (
            select coalesce(json_agg(json_build_array(r.id, history_v1(r.id))), '[]')
            from unnest(text_array_v1(w.histories)) as h (id)
            join runs as r on r.id = h.id
        ));
    end if;
    if w.messages is not null then
        found := found || named_v1('receipts', (
            select coalesce(json_agg(json_build_array(r.run_id, r.message_id, r.at)), '[]')
            from addressed_v1(w.messages, locked) as m
            join receipts as r on r.run_id = m.run_id and r.message_id = m.id
        ));
    end if;
    if w.audits is not null then
        found := found || named_v1('audits', (
            select coalesce(json_agg(json_build_object(
                'run_id', a.run_id, 'event', a.event, 'at', a.at, 'data', coalesce(json_of(a.data), '{}')
            ) order by a.number), '[]')
            from unnest(text_array_v1(w.audits)) as l (id)
            join audits as a on a.run_id = l.id
            where a.event in ('dropped', 'heartbeat', 'key_reused') or a.data like '%"request"%'
        ));
    end if;
    if w.topics is not null or w.events is not null or w.inboxes is not null then
        found := found
            || named_v1('topics', (select coalesce(json_agg(row_to_json(t)), '[]') from topics as t))
            || named_v1('events', events_v1(asked, locked, now));
    end if;
    if w.new_events is not null then
        found := found || named_v1('event_numbers', (
            select json_agg(nextval(pg_get_serial_sequence('events', 'number')))
            from generate_series(1, w.new_events)
        ));
    end if;
    if w.letters is not null then
        found := found || named_v1('letters', (
            select coalesce(json_agg(row_to_json(l) order by l.number), '[]')
            from json_array_elements_text(w.letters) as n (number)
            join letters as l on l.number = n.number::bigint
        ));
    end if;
    if w.flows is not null then
        found := found || named_v1('flows', (
            select coalesce(json_agg(json_build_object(
                'type', f.type, 'version', f.version, 'instruction_set', f.instruction_set,
                'description', f.description, 'registered_at', f.registered_at, 'by', f.by, 'used_at', f.used_at,
                'source', case when l.has_texts then f.source else '' end,
                'program', case when l.has_texts then f.program else '' end
            ) order by f.type, f.registered_at), '[]')
            from json_to_recordset(w.flows) as l (type text, has_texts boolean)
            join flows as f on f.type = l.type
        ));
    end if;
    return '{' || array_to_string(found, ',') || '}';
end
$$;
