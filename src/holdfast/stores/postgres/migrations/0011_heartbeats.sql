-- Signs of life of bodies that take long are facts of a run's audit that come over and over, like claims: only the last
-- facts of these kinds are kept; now and then the rest is cleared away.
create or replace function trim_v1(of_runs text[]) returns void
    language plpgsql
    set search_path from current
    as $$
begin
    delete from audits as old
    using unnest(of_runs) as c (id)
    cross join lateral (
        select a.number
        from audits as a
        where a.run_id = c.id and a.event in ('claimed', 'suspended', 'woken', 'heartbeat')
        order by a.number desc
        offset 100
        limit 1
    ) as last
    where old.run_id = c.id
        and old.number <= last.number
        and old.event in ('claimed', 'suspended', 'woken', 'heartbeat');
end
$$;
