-- Write the waits of runs. The waits of a run keep their order.
create function await_v1(waiting json) returns void
    language plpgsql
    set search_path from current
    as $$
begin
    insert into waits (run_id, place, location, kind, since, names, deadline, after, count, topic)
    select
        r.run_id, w.place, w.location, w.kind, w.since, coalesce(w.names, '[]')::text, w.deadline,
        coalesce(w.after, 0), coalesce(w.count, 0),
        case when w.kind in ('event', 'slot') then w.names ->> 0 end
    from json_to_recordset(waiting) as r (run_id text, waits json)
    cross join lateral rows from (
        json_to_recordset(r.waits) as (
            location text, kind text, since bigint, names json, deadline bigint, after bigint, count bigint
        )
    ) with ordinality as w (location, kind, since, names, deadline, after, count, place);
end
$$;
