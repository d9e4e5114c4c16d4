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
