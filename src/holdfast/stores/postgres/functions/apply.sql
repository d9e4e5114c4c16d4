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
        set {{run_changes}}
        from json_to_recordset(c.runs) as n ({{run_record}})
        where r.id = n.id;
    end if;
    if c.made is not null then
        insert into runs ({{run_columns}})
        select {{run_values}}
        from json_to_recordset(c.made) as n ({{run_record}})
        order by n.key, n.id
        on conflict do nothing;
        get diagnostics made = row_count;
        if made < json_array_length(c.made) then
            raise exception 'an id or a key is taken' using errcode = 'HF001';
        end if;
    end if;

    if c.types is not null then
        insert into types (rate_window, {{type_columns}})
        select n.rate_window::text, {{type_values}}
        from json_to_recordset(c.types) as n (rate_window json, {{type_record}})
        order by n.name collate "C"
        on conflict (name) do update
        set rate_window = excluded.rate_window, {{type_updates}};
    end if;
    if c.flows is not null then
        insert into flows ({{flow_columns}})
        select {{flow_values}}
        from json_to_recordset(c.flows) as n ({{flow_record}})
        order by n.type collate "C", n.registered_at
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
        insert into entries (run_id, token, {{entry_columns}})
        select n.run_id, n.token, {{entry_values}}
        from json_to_recordset(c.entries) as n (run_id text, token bigint, {{entry_record}})
        on conflict (run_id, location) do update
        set token = excluded.token, {{entry_updates}};
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
        insert into inbox (run_id, {{arrival_columns}})
        select n.run_id, {{arrival_values}}
        from json_to_recordset(c.arrived) as n (run_id text, {{arrival_record}});
    end if;
    if c.waits is not null then
        delete from waits as w
        using json_to_recordset(c.waits) as n (run_id text)
        where w.run_id = n.run_id;
        perform await_v1(c.waits);
    end if;

    if c.lifted is not null then
        -- `limits.release` in SQL.
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
        insert into events ({{event_columns}})
        select {{event_values}}
        from json_to_recordset(c.events) as n ({{event_record}})
        on conflict (number) do update
        set reached = excluded.reached, state = excluded.state, holder = excluded.holder,
            taken_at = excluded.taken_at;
    end if;
    if c.letters is not null then
        insert into letters ({{letter_columns}})
        select {{letter_values}}
        from rows from (
            json_to_recordset(c.letters) as ({{letter_record}})
        ) with ordinality as n ({{letter_columns}}, place)
        order by n.place;
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
