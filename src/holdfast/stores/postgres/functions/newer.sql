-- Returns the arrivals in the inbox of a run after a number.
create function newer_v1(of_run text, seen bigint) returns json
    {{reader}}
    as $$
begin
    return (
        select coalesce(json_agg(row_to_json(a) order by a.number), '[]')
        from inbox_read as a
        where a.run_id = of_run and a.number > seen
    );
end
$$;
