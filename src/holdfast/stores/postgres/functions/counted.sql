-- Returns the runs of types that are held or have slots.
create function counted_v1(of_types text[]) returns text[]
    language plpgsql stable
    as $$
begin
    return array(
        select held.id
        from unnest(of_types) as t (type)
        cross join lateral (
            select r.id
            from runs as r
            where r.type = t.type and r.worker is not null
            offset 0
        ) as held
        union all
        select s.run_id
        from slots_v1(of_types) as s
    );
end
$$;
