-- What is decided by the operations of the memory store. `0002_leases.sql` says what all functions have in common.

-- A member of an object that is put together piece by piece. Stable like what it is made of, or it would not be put in
-- the place of a call, and be planned at each.
create or replace function named_v1(name text, value json) returns text
    language sql stable
    as $$ select '"' || name || '":' || value $$;

drop function if exists parked_v1(json);

-- Who has slots of limits of types: their own, of their rates, and of their keys, whose names begin with the type's.
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

-- The runs of types that are held, or have slots.
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

-- The runs that wait because of limits of types.
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
                and w.kind = 'slot' and w.location = '~limit'
            union all
            select w.run_id
            from waits as w
            where w.topic >= 'type:' || t.type || ' ' and w.topic < 'type:' || t.type || '!'
                and w.kind = 'slot' and w.location = '~limit'
        ) as p
    );
end
$$;

-- A run and those below it that failed or were cancelled, whom its recovery may reopen: as many as are wanted, from the
-- top. Only a guess at what has to be loaded, so it locks nothing.
create function lost_v1(of_run text, at_most integer) returns text
    language plpgsql stable
    set search_path from current
    as $$
begin
    return (
        with recursive lost (id) as (
            select of_run collate "C"
            union
            select child.id
            from lost
            cross join lateral (
                select r.id
                from runs as r
                where r.parent_id = lost.id and r.state in ('failed', 'cancelled')
                offset 0
            ) as child
        )
        select json_agg(l.id)::text
        from (
            select id
            from lost
            limit at_most
        ) as l
    );
end
$$;

-- Lock what an operation is about, and tell all it may have to know. First the topics, then the types that have limits,
-- then all runs, each in one order; everything is read afterwards, so that it is as it stays until the transaction ends.
-- Only whom to lock is read before: who is found to be missing then makes all begin anew.
--
-- `endings` are runs that may end: with them go those of their descendants that end with them, and their parents.
-- `renewals` may begin anew and part with all their children. `due` is the wish for runs that may be claimed, of which
-- those are passed over that somebody else has locked. `limits` are types whose limits are to be others: whoever changes
-- rules (`is_ruling`) keeps all from claiming meanwhile, and waits until those are through who have begun. `lifted` are
-- types that have no limits any more, so that nobody waits for them. What is not wished for is not looked at.
create or replace function load_v1(wishes text, at bigint) returns text
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
    set enable_bitmapscan = off
    as $$
declare
    asked constant json := wishes::json;
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
        messages json, audits json, topics json, events json, inboxes json, new_events integer, letters json, waits json
    );
    endings := text_array_v1(w.endings);
    renewals := text_array_v1(w.renewals);
    types := text_array_v1(w.types);
    locked := text_array_v1(w.runs);
    if w.is_ruling is not null then
        lock table types in exclusive mode;
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

    -- Who else is concerned.
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
        locked := locked || array(select p.run_id from parked_v2(w.groups) as p);
    end if;
    if w.limits is not null then
        locked := locked || counted_v1(text_array_v1(w.limits));
    end if;
    if w.lifted is not null then
        -- In the same order, but they are not told of: there may be very many.
        perform
        from runs as r
        where r.id = any(locked || parked_of_v1(text_array_v1(w.lifted)))
        order by r.id
        for no key update;
    end if;
    -- A run that is made only now is not seen, for it could not be locked any more.
    locked := array(select r.id from runs as r where r.id = any(locked) order by r.id for no key update);
    if w.due is not null then
        -- Last of all: whoever has locked them, in no order, must not wait for anything.
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
        -- What a parent waits for matters only while it is asleep (`rules.is_asleep`). It may wait for thousands of
        -- children, and all of its waits would be loaded again for each batch of them that ends.
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
            from parked_v2(w.groups) as p
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
    return '{' || array_to_string(found, ',') || '}';
end
$$;

-- Write what an operation has changed. Everything it is about is locked by the same transaction.
create or replace function apply_v1(changes text, now bigint) returns void
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
    c record;
    made bigint;
    parked text[];
begin
    -- Taken apart once: whoever asks for a part of a `json` has all of it read.
    select *
    into c
    from json_to_record(changes::json) as c (
        runs json, made json, types json, lifted json, freed json, taken json, cleared json, dropped json, entries json,
        emptied json, consumed json, arrived json, waits json, "values" json, receipts json, replies json,
        forgotten json, events json, letters json, purged json, facts json
    );
    if c.runs is not null then
        update runs as r
        set state = n.state,
            ready_at = instant(n.ready_at),
            worker = n.worker,
            token = coalesce(n.token, 0),
            claim_id = n.claim_id,
            crashes = coalesce(n.crashes, 0),
            arrivals = coalesce(n.arrivals, 0),
            attempt = coalesce(n.attempt, 1),
            generation = coalesce(n.generation, 1),
            key = n.key,
            parent_location = n.parent_location,
            start_at = n.start_at,
            updated_at = n.updated_at,
            first_claimed_at = n.first_claimed_at,
            finished_at = n.finished_at,
            suspended_at = n.suspended_at,
            rollback = n.rollback,
            is_pausing = coalesce(n.is_pausing, false),
            python = n.python,
            error = n.error::text,
            continued = n.continued,
            result = n.result,
            slots = n.slots::text,
            deleted_at = n.deleted_at,
            purge_at = n.purge_at
        from json_to_recordset(c.runs) as n (
            id text, state text, ready_at bigint, worker text, token bigint, claim_id text, crashes integer,
            arrivals bigint, attempt integer, generation integer, key text, parent_location text, start_at bigint,
            updated_at bigint, first_claimed_at bigint, finished_at bigint, suspended_at bigint, rollback text,
            is_pausing boolean, python text, error json, continued text, result text, slots json, deleted_at bigint, purge_at bigint
        )
        where r.id = n.id;
    end if;
    if c.made is not null then
        insert into runs (
            id, type, state, priority, ready_at, worker, token, claim_id, crashes, arrivals, attempt, generation, key,
            parent_id, parent_location, on_close, created_at, start_at, updated_at, first_claimed_at, finished_at,
            suspended_at, rollback, is_pausing, python, tags, options, error, payload, continued, result,
            slots, retention, deleted_at, purge_at
        )
        select
            n.id, n.type, n.state, coalesce(n.priority, 100), instant(n.ready_at), n.worker, coalesce(n.token, 0),
            n.claim_id, coalesce(n.crashes, 0), coalesce(n.arrivals, 0), coalesce(n.attempt, 1),
            coalesce(n.generation, 1), n.key, n.parent_id, n.parent_location, coalesce(n.on_close, 'abandon'),
            n.created_at, n.start_at, n.updated_at, n.first_claimed_at, n.finished_at, n.suspended_at, n.rollback,
            coalesce(n.is_pausing, false), n.python, n.tags, n.options::text, n.error::text, n.payload, n.continued,
            n.result, n.slots::text, n.retention, n.deleted_at, n.purge_at
        from json_to_recordset(c.made) as n (
            id text, type text, state text, priority smallint, ready_at bigint, worker text, token bigint,
            claim_id text, crashes integer, arrivals bigint, attempt integer, generation integer, key text,
            parent_id text, parent_location text, on_close text, created_at bigint, start_at bigint,
            updated_at bigint, first_claimed_at bigint, finished_at bigint, suspended_at bigint, rollback text,
            is_pausing boolean, python text, tags jsonb, options json, error json, payload text, continued text,
            result text, slots json, retention bigint, deleted_at bigint, purge_at bigint
        )
        order by n.key, n.id
        on conflict do nothing;
        get diagnostics made = row_count;
        if made < json_array_length(c.made) then
            raise exception 'an id or a key is taken' using errcode = 'HF001';
        end if;
    end if;

    if c.types is not null then
        insert into types (
            name, runtime, description, is_enabled, concurrency, per_key, rate, rate_window, retention, seen_by, seen_at
        )
        select
            t.name, coalesce(t.runtime, ''), coalesce(t.description, ''), coalesce(t.is_enabled, true), t.concurrency,
            t.per_key::text, t.rate::text, t.rate_window::text, t.retention, coalesce(t.seen_by, ''), t.seen_at
        from json_to_recordset(c.types) as t (
            name text, runtime text, description text, is_enabled boolean, concurrency bigint, per_key json, rate json,
            rate_window json, retention bigint, seen_by text, seen_at bigint
        )
        order by t.name collate "C"
        on conflict (name) do update
        set runtime = excluded.runtime, description = excluded.description, is_enabled = excluded.is_enabled,
            concurrency = excluded.concurrency, per_key = excluded.per_key, rate = excluded.rate,
            rate_window = excluded.rate_window, retention = excluded.retention, seen_by = excluded.seen_by,
            seen_at = excluded.seen_at;
    end if;
    if c.freed is not null then
        delete from slots as s
        using json_to_recordset(c.freed) as f (name text, run_id text)
        where s.name = f.name and s.run_id = f.run_id;
    end if;
    if c.taken is not null then
        insert into slots (name, run_id)
        select t.name, t.run_id
        from json_to_recordset(c.taken) as t (name text, run_id text);
    end if;

    if c.cleared is not null then
        delete from entries where run_id = any(text_array_v1(c.cleared));
    end if;
    if c.dropped is not null then
        delete from entries as e
        using json_to_recordset(c.dropped) as d (run_id text, location text)
        where e.run_id = d.run_id and e.location = d.location;
    end if;
    if c.entries is not null then
        insert into entries (
            run_id, location, kind, state, position, attempts, since, started_at, finished_at, retry_at, token,
            has_undo, ref, error, result
        )
        select
            e.run_id, e.location, e.kind, e.state, coalesce(e.position, 0), coalesce(e.attempts, 0),
            coalesce(e.since, 0), coalesce(e.started_at, 0), e.finished_at, e.retry_at, e.token,
            coalesce(e.has_undo, false), e.ref, e.error::text, e.result
        from json_to_recordset(c.entries) as e (
            run_id text, token bigint, location text, kind text, state text, position bigint, attempts integer,
            since bigint, started_at bigint, finished_at bigint, retry_at bigint, has_undo boolean, ref text,
            error json, result text
        )
        on conflict (run_id, location) do update
        set kind = excluded.kind, state = excluded.state, position = excluded.position, attempts = excluded.attempts,
            since = excluded.since, started_at = excluded.started_at, finished_at = excluded.finished_at,
            retry_at = excluded.retry_at, token = excluded.token, has_undo = excluded.has_undo, ref = excluded.ref,
            error = excluded.error, result = excluded.result;
    end if;

    if c.emptied is not null then
        delete from inbox where run_id = any(text_array_v1(c.emptied));
    end if;
    if c.consumed is not null then
        delete from inbox as i
        using json_to_recordset(c.consumed) as d (run_id text, number bigint)
        where i.run_id = d.run_id and i.number = d.number;
    end if;
    if c.arrived is not null then
        insert into inbox (run_id, number, kind, name, at, is_exclusive, ref, family, state, error, payload)
        select
            a.run_id, a.number, a.kind, a.name, a.at, coalesce(a.is_exclusive, false), a.ref, a."group", a.state,
            a.error::text, a.payload
        from json_to_recordset(c.arrived) as a (
            run_id text, number bigint, kind text, name text, at bigint, is_exclusive boolean, ref text, "group" text,
            state text, error json, payload text
        );
    end if;
    if c.waits is not null then
        delete from waits as w
        using json_to_recordset(c.waits) as n (run_id text)
        where w.run_id = n.run_id;
        perform await_v1(c.waits);
    end if;

    if c.lifted is not null then
        -- `limits.let_go` in the words of SQL.
        parked := parked_of_v1(text_array_v1(c.lifted));
        update runs as r
        set ready_at = (
                select instant(least(w.since, now))
                from waits as w
                where w.run_id = r.id and w.location = '~limit'
            ),
            updated_at = now
        where r.id = any(parked);
        delete from waits where run_id = any(parked) and location = '~limit';
    end if;

    if c."values" is not null then
        insert into run_values (run_id, name, value)
        select v.run_id, v.name, v.value
        from json_to_recordset(c."values") as v (run_id text, name text, value text)
        on conflict (run_id, name) do update
        set value = excluded.value;
    end if;
    if c.receipts is not null then
        insert into receipts (run_id, message_id, at)
        select r.run_id, r.message_id, r.at
        from json_to_recordset(c.receipts) as r (run_id text, message_id text, at bigint)
        on conflict (run_id, message_id) do update
        set at = excluded.at;
    end if;
    if c.replies is not null then
        insert into replies (run_id, message_id, payload, at)
        select r.run_id, r.message_id, r.payload, r.at
        from json_to_recordset(c.replies) as r (run_id text, message_id text, payload text, at bigint)
        on conflict (run_id, message_id) do nothing;
    end if;

    if c.forgotten is not null then
        delete from events
        using json_array_elements_text(c.forgotten) as f (number)
        where events.number = f.number::bigint;
    end if;
    if c.events is not null then
        insert into events (number, topic, id, payload, at, reached, state, holder, taken_at)
        select e.number, e.topic, e.id, e.payload, e.at, e.reached, e.state, e.holder, e.taken_at
        from json_to_recordset(c.events) as e (
            number bigint, topic text, id text, payload text, at bigint, reached bigint, state text, holder text,
            taken_at bigint
        )
        on conflict (number) do update
        set reached = excluded.reached, state = excluded.state, holder = excluded.holder,
            taken_at = excluded.taken_at;
    end if;
    if c.letters is not null then
        insert into letters (id, topic, run_id, name, payload, at, reason)
        select l.id, l.topic, l.run_id, l.name, l.payload, l.at, l.reason
        from rows from (
            json_to_recordset(c.letters) as (
                id text, topic text, run_id text, name text, payload text, at bigint, reason text
            )
        ) with ordinality as l (id, topic, run_id, name, payload, at, reason, place)
        order by l.place;
    end if;
    if c.purged is not null then
        delete from letters
        using json_array_elements_text(c.purged) as p (number)
        where letters.number = p.number::bigint;
    end if;
    if c.facts is not null then
        insert into audits (run_id, event, at, data)
        select f.run_id, f.event, f.at, f.data::text
        from rows from (
            json_to_recordset(c.facts) as (run_id text, event text, at bigint, data json)
        ) with ordinality as f (run_id, event, at, data, place)
        order by f.place;
    end if;
end
$$;
