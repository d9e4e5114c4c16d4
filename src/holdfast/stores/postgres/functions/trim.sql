-- Remove old audit facts of routine events, which a run repeats. The last {{routine_kept}} are kept.
create function trim_v1(of_runs text[]) returns void
    language plpgsql
    set search_path from current
    as $$
begin
    delete from audits as old
    using unnest(of_runs) as c (id)
    cross join lateral (
        select a.number
        from audits as a
        where a.run_id = c.id and a.event in ({{routine}})
        order by a.number desc
        offset {{routine_kept}}
        limit 1
    ) as last
    where old.run_id = c.id
        and old.number <= last.number
        and old.event in ({{routine}});
end
$$;
