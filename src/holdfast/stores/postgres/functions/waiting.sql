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
