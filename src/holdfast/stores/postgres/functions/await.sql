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
