-- The slots of limits of types, with the runs that have them: the type's own slots, those of its rate, and those per
-- tag, whose names begin with the type's name.
create function slots_v1(of_types text[]) returns table (name text, run_id text)
    language plpgsql stable
    as $$
begin
    return query
    select s.name, s.run_id
    from unnest(of_types) as t (type)
    cross join lateral (
        select s.name, s.run_id
        from slots as s
        where s.name in ('type:' || t.type, 'rate:' || t.type)
        union all
        select s.name, s.run_id
        from slots as s
        where s.name >= 'type:' || t.type || ' ' and s.name < 'type:' || t.type || '!'
    ) as s;
end
$$;
