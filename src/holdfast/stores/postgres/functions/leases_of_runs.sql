-- Returns claimed runs with their histories and inboxes. A run has no history at its first claim, unless the claim is
-- repeated: its holder may have written since.
create function leases_of_runs_v1(claimed text[], is_repeat boolean) returns json
    language plpgsql stable
    as $$
begin
    return (
        select coalesce(json_agg(json_build_object(
            'run', row_to_json(r),
            'entries', case when r.token = 1 and not is_repeat then '[]'::json else leased_history_v1(r.id) end,
            'arrivals', case when r.arrivals = 0 then '[]'::json else newer_v1(r.id, 0) end
        ) order by c.place), '[]')
        from unnest(claimed) with ordinality as c (id, place)
        cross join lateral (
            select *
            from runs_read as r
            where r.id = c.id
            limit 1
        ) as r
    );
end
$$;
