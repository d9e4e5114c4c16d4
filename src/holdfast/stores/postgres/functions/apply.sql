-- Write the changes of an operation. The same transaction has locked all runs, topics and types that it concerns.
create function apply_v1(changes text, now bigint) returns void
    {{operation}}
    as $$
declare
    c record;
    made bigint;
    parked text[];
begin
    -- Parsed once: each access to a part of a `json` value parses the whole value.
    select *
    into c
    from json_to_record(changes::json) as c (
        runs json, made json, types json, lifted json, freed json, taken json, cleared json, dropped json, entries json,
        emptied json, consumed json, arrived json, waits json, "values" json, receipts json, replies json,
        forgotten json, events json, letters json, purged json, facts json, flows json, faded json
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
            is_pausing boolean, python text, error json, continued text, result text, slots json,
            deleted_at bigint, purge_at bigint
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
            name, runtime, description, is_enabled, concurrency, per_key, rate, rate_window, retention, seen_by,
            seen_at, plan
        )
        select
            t.name, coalesce(t.runtime, ''), coalesce(t.description, ''), coalesce(t.is_enabled, true), t.concurrency,
            t.per_key::text, t.rate::text, t.rate_window::text, t.retention, coalesce(t.seen_by, ''), t.seen_at,
            t.plan::text
        from json_to_recordset(c.types) as t (
            name text, runtime text, description text, is_enabled boolean, concurrency bigint, per_key json, rate json,
            rate_window json, retention bigint, seen_by text, seen_at bigint, plan json
        )
        order by t.name collate "C"
        on conflict (name) do update
        set runtime = excluded.runtime, description = excluded.description, is_enabled = excluded.is_enabled,
            concurrency = excluded.concurrency, per_key = excluded.per_key, rate = excluded.rate,
            rate_window = excluded.rate_window, retention = excluded.retention, seen_by = excluded.seen_by,
            seen_at = excluded.seen_at, plan = excluded.plan;
    end if;
    if c.flows is not null then
        insert into flows (type, registered_at, version, instruction_set, description, by, used_at, source, program)
        select
            f.type, f.registered_at, f.version, coalesce(f.instruction_set, 1), coalesce(f.description, ''),
            coalesce(f.by, ''), coalesce(f.used_at, 0), coalesce(f.source, ''), coalesce(f.program, '')
        from json_to_recordset(c.flows) as f (
            type text, registered_at bigint, version text, instruction_set integer, description text, by text,
            used_at bigint, source text, program text
        )
        order by f.type collate "C", f.registered_at
        on conflict (type, registered_at) do update
        set used_at = excluded.used_at;
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
    if c.faded is not null then
        -- Settled entries for people. `A` is the character after `@`.
        delete from entries as e
        using json_to_recordset(c.faded) as f (run_id text, before bigint)
        where e.run_id = f.run_id and e.location >= '@' and e.location < 'A'
            and e.position > 0 and e.position < f.before;
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
        -- `limits.let_go` in SQL.
        parked := parked_of_v1(text_array_v1(c.lifted));
        update runs as r
        set ready_at = (
                select instant(least(w.since, now))
                from waits as w
                where w.run_id = r.id and w.location = '{{limit_location}}'
            ),
            updated_at = now
        where r.id = any(parked);
        delete from waits where run_id = any(parked) and location = '{{limit_location}}';
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
