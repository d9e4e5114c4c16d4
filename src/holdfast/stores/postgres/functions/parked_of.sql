-- Returns the runs that wait because of limits of types. `waits_slot`
create function parked_of_v1(of_types text[]) returns text[]
    language plpgsql stable
    as $$
begin
    return array(
        select p.run_id
        from unnest(of_types) as t (type)
        cross join lateral (
            select w.run_id
            from waits as w
            where w.topic in ('type:' || t.type, 'rate:' || t.type)
                and w.kind = 'slot' and w.location = '{{limit_location}}'
            union all
            select w.run_id
            from waits as w
            where w.topic >= 'type:' || t.type || ' ' and w.topic < 'type:' || t.type || '!'
                and w.kind = 'slot' and w.location = '{{limit_location}}'
        ) as p
    );
end
$$;
