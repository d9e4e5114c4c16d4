-- Returns the entries of a run in the order in which they were settled. Unsettled entries come last.
create function history_v1(of_run text) returns json
    {{reader}}
    as $$
begin
    return (
        select coalesce(
            json_agg(row_to_json(e) order by e.position = 0, e.position, e.location collate "C"), '[]'
        )
        from entries_read as e
        where e.run_id = of_run
    );
end
$$;
