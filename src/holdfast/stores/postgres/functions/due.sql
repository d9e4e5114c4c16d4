-- Returns the due runs that a claim within limits needs: of each rank the first `wanted` by priority, ready time and
-- id, and the first `suspects` suspects. Shares play no part here: they count only runs that get a slot, and these are
-- not known yet.
create function due_v1(wanted_types text[], due timestamptz, wanted integer, suspects integer) returns table (id text)
    language plpgsql stable
    as $$
begin
    return query
    select n.id
    from (
        select h.id, h.is_suspect,
            row_number() over (
                partition by h.rank, h.is_suspect order by h.priority, h.ready_at, h.id collate "C"
            ) as number
        from heads_v1(wanted_types, due, wanted, 0, suspects) as h
    ) as n
    where n.is_suspect or n.number <= wanted;
end
$$;
