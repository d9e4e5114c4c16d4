-- Checkpoints: the progress that a worker writes.

-- Write a batch of checkpoints: the new entries, and the next states that `rules` computed. A run is written only if it
-- has not changed since the caller read it.
--
-- Run n is `ids[n]`, held under `tokens[n]`. `seens[n]` is the last arrival that its holder has seen. `kinds[n]` says
-- what to check: `hold` (it gained entries only), `keep` (it stays held), `sleep` (nothing must have arrived since),
-- `end`, or `move`. `gained` has the entries and `moved` everything else, each with the `n` of its run.
--
-- The verdict on a run under another token is `lost`. The verdict on a run that no worker holds is `applied`: an
-- earlier attempt of this call released it. Any other unexpected run is not written and gets `other`, because it takes
-- more than one statement: a pause was requested, something arrived before it could sleep, its end concerns other runs,
-- or its slot must be passed on.
--
-- Each run is looked up by its id, in a loop or a lateral join. For a plain join Postgres may compare every run with
-- every checkpoint while it believes that there are few runs. No condition names `worker` alone. Otherwise Postgres
-- would read the whole index of held runs for each run, if there were none when it last gathered statistics.
create function checkpoint_v1(
    ids text[], tokens bigint[], seens bigint[], kinds text[], gained text, moved text, at bigint
) returns text
    {{operation}}
    as $$
declare
    now bigint;
    fit integer[];
    unsure integer[];
    unseen bigint;
    place integer;
    is_written boolean[];
    one record;
    has_more boolean := false;
    moved_ids text[];
    moved_kinds text[];
    moved_states text[];
    moved_readies bigint[];
    moved_crashes integer[];
    moved_sleeps bigint[];
    moved_rollbacks text[];
    moved_results text[];
    moved_errors text[];
    moved_events text[];
    moved_data text[];
begin
    select
        array_agg(c.n),
        array_agg(c.n) filter (where r.arrivals > 0 and c.kind <> 'hold'),
        count(*) filter (where r.arrivals <> c.seen)
    into fit, unsure, unseen
    from (
        select c.id, c.token, c.seen, c.kind, c.n
        from unnest(ids, tokens, seens, kinds) with ordinality as c (id, token, seen, kind, n)
        order by c.id collate "C"
    ) as c
    cross join lateral (
        select r.arrivals
        from runs as r
        where r.id = c.id
            and r.token = c.token
            and coalesce(r.worker, '') <> ''
            and r.stop is null
            and (c.kind <> 'sleep' or r.arrivals <= c.seen)
            and (c.kind <> 'end' or r.parent_id is null or r.parent_location is null)
            and (c.kind <> 'end' or r.retention is null)
            and (c.kind in ('hold', 'keep') or r.slots is null)
        for no key update
    ) as r;
    now := time_v1(at);
    is_written := array_fill(cardinality(fit) is not distinct from cardinality(ids), array[cardinality(ids)]);
    if not is_written[1] then
        foreach place in array coalesce(fit, '{}') loop
            is_written[place] := true;
        end loop;
    end if;

    if moved is not null then
        -- Not written here: an end that cancels children or leaves arrivals unread, and a checkpoint of a run with a
        -- queue event in its inbox. The shared operations decide these.
        for place in
            select distinct array_position(ids, child.parent_id)
            from runs as child
            where child.parent_id = any(array(select c.id from unnest(ids, kinds) as c (id, kind) where c.kind = 'end'))
                and child.on_close = 'cancel' and child.finished_at is null
        loop
            is_written[place] := false;
        end loop;
        if unsure is not null then
            for place in
                select m.n
                from json_to_recordset(moved::json) as m (n integer, consumed json)
                where m.n = any(unsure)
                    and exists (
                        select
                        from inbox as i
                        where i.run_id = ids[m.n]
                            and (
                                i.kind = 'event' and i.is_exclusive
                                or kinds[m.n] = 'end' and i.number not in (
                                    select t.n::bigint
                                    from json_array_elements_text(m.consumed) as t (n)
                                )
                            )
                    )
            loop
                is_written[place] := false;
            end loop;
        end if;

        select
            array_agg(ids[m.n]), array_agg(kinds[m.n]), array_agg(m.state), array_agg(m.ready_at),
            array_agg(m.crashes), array_agg(m.suspended_at), array_agg(m.rollback), array_agg(m.result),
            array_agg(m.error::text), array_agg(m.event), array_agg(m.data::text),
            bool_or(m.consumed is not null or m.waits is not null or m."values" is not null)
        into
            moved_ids, moved_kinds, moved_states, moved_readies, moved_crashes, moved_sleeps, moved_rollbacks,
            moved_results, moved_errors, moved_events, moved_data, has_more
        from json_to_recordset(moved::json) as m (
            n integer, state text, ready_at bigint, crashes integer, suspended_at bigint, rollback text, result text,
            error json, event text, data json, consumed json, waits json, "values" json
        )
        where is_written[m.n];

        insert into audits (run_id, event, at, data)
        select m.id, m.event, now, m.data
        from unnest(moved_ids, moved_events, moved_data) as m (id, event, data)
        where m.event is not null;

        update runs as r
        set (state, ready_at, crashes, finished_at, suspended_at, rollback, result, error) = (
                select
                    moved_states[m.n],
                    instant(moved_readies[m.n]),
                    coalesce(moved_crashes[m.n], 0),
                    case when moved_kinds[m.n] = 'end' then now end,
                    case when moved_kinds[m.n] = 'sleep' then now else moved_sleeps[m.n] end,
                    moved_rollbacks[m.n],
                    moved_results[m.n],
                    moved_errors[m.n]
                from (select array_position(moved_ids, r.id) as n offset 0) as m
            ),
            worker = null,
            claim_id = null,
            updated_at = now
        where r.id = any(array(
            select m.id
            from unnest(moved_ids, moved_states) as m (id, state)
            where m.state is not null
        ));
    end if;

    if has_more then
        for one in
            select ids[m.n] as id, m.consumed, m.waits, m."values"
            from json_to_recordset(moved::json) as m (n integer, consumed json, waits json, "values" json)
            where is_written[m.n]
        loop
            if one.consumed is not null then
                with taken as (
                    delete from inbox as i
                    where i.run_id = one.id
                        and i.number = any(array(
                            select t.n::bigint
                            from json_array_elements_text(one.consumed) as t (n)
                        ))
                    returning i.kind, i.ref
                )
                insert into receipts (run_id, message_id, at)
                select one.id, t.ref, now
                from taken as t
                where t.kind = 'message' and t.ref is not null
                on conflict (run_id, message_id) do update
                set at = excluded.at;
            end if;
            if one.waits is not null then
                delete from waits where run_id = one.id;
                if json_array_length(one.waits) > 0 then
                    perform await_v1(json_build_array(json_build_object('run_id', one.id, 'waits', one.waits)));
                end if;
            end if;
            if one."values" is not null then
                insert into run_values (run_id, name, value)
                select one.id, v.key, v.value
                from json_each_text(one."values") as v
                on conflict (run_id, name) do update
                set value = excluded.value;
            end if;
        end loop;
    end if;

    if gained is not null then
        -- An entry is kept if it is settled or of a later attempt: `rules.supersedes` in SQL.
        insert into entries as known (run_id, token, {{entry_columns}})
        select ids[n.n], tokens[n.n], {{entry_values}}
        from json_to_recordset(gained::json) as n (n integer, {{entry_record}})
        where is_written[n.n]
        on conflict (run_id, location) do update
        set token = excluded.token, {{entry_updates}}
        where known.position = 0
            and (excluded.position > 0 or excluded.attempts > known.attempts);
    end if;

    if unseen = 0 and true = all(is_written) then
        return json_build_object('now', now)::text;
    end if;
    return json_build_object(
        'now', now,
        'verdicts', (
            select json_agg(
                case
                    when is_written[c.n] then json_build_object(
                        'is', 'written',
                        'seen', r.arrivals,
                        'arrivals', case
                            when r.arrivals > c.seen and r.worker is not null then newer_v1(r.id, c.seen)
                            else '[]'
                        end
                    )
                    when r.id is null or r.token <> c.token then json_build_object('is', 'lost')
                    when r.worker is null then json_build_object('is', 'applied')
                    else json_build_object('is', 'other')
                end
                order by c.n
            )
            from unnest(ids, tokens, seens) with ordinality as c (id, token, seen, n)
            left join lateral (
                select r.id, r.token, r.worker, r.arrivals
                from runs as r
                where r.id = c.id
                limit 1
            ) as r on true
        )
    )::text;
end
$$;

-- Write the waits of runs. The waits of a run keep their order.
create function await_v1(waiting json) returns void
    language plpgsql
    set search_path from current
    as $$
begin
    insert into waits (run_id, place, topic, {{wait_columns}})
    select r.run_id, n.place, case when n.kind in ('event', 'slot') then n.names ->> 0 end, {{wait_values}}
    from json_to_recordset(waiting) as r (run_id text, waits json)
    cross join lateral rows from (
        json_to_recordset(r.waits) as ({{wait_record}})
    ) with ordinality as n ({{wait_columns}}, place);
end
$$;

-- Remove old audit facts of routine events, which a run repeats. The last {{routine_kept}} are kept.
create function trim_v1(of_runs text[]) returns void
    language plpgsql
    set search_path from current
    as $$
begin
    delete from audits as old
    using unnest(of_runs) as c (id)
    cross join lateral (
        select a.number
        from audits as a
        where a.run_id = c.id and a.event in ({{routine}})
        order by a.number desc
        offset {{routine_kept}}
        limit 1
    ) as last
    where old.run_id = c.id
        and old.number <= last.number
        and old.event in ({{routine}});
end
$$;
