-- Returns the entries of a run that a lease has, in the order of `history_v1`: all but those for people.
create function leased_history_v1(of_run text) returns json
    {{reader}}
    as $$
begin
    return (
        select coalesce(
            json_agg(row_to_json(e) order by e.position = 0, e.position, e.location collate "C"), '[]'
        )
        from entries_read as e
        where e.run_id = of_run and left(e.location, 1) <> '{{people_prefix}}'
    );
end
$$;
