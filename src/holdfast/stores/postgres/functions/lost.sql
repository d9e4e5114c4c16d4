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
