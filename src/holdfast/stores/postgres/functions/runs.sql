-- Runs: their histories and their families.

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

-- Returns runs with all their descendants that are cancelled when they end.
create function descendants_v1(of_runs text[]) returns text[]
    {{reader}}
    as $$
begin
    return (
        with recursive ending (id) as (
            select unnest(of_runs) collate "C"
            union
            select child.id
            from ending
            cross join lateral (
                select r.id
                from runs as r
                where r.parent_id = ending.id and r.finished_at is null
                    and r.on_close = 'cancel'
                offset 0
            ) as child
        )
        select array_agg(e.id)
        from ending as e
    );
end
$$;

-- Returns a run and the failed or cancelled descendants that its recovery may reopen: the first `at_most`, from the
-- top. It locks nothing, because it only guesses which runs have to be loaded.
create function lost_v1(of_run text, at_most integer) returns text
    {{reader}}
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
