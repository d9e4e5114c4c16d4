-- Returns the slots of limits of types, with the runs that have them: the slots of the type, of its rate, and per tag.
-- The names of slots per tag begin with the name of the type.
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
