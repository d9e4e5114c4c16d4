-- Returns the time when the next run of some types may be claimed, without runs that the worker itself holds. The head
-- of a lane is its first run to become ready. `runs_queue`, `runs_held`
create function next_ready_v1(types text[], by_worker text) returns bigint
    language plpgsql stable
    as $$
begin
    return micros(least(
        (
            with recursive queued (type, priority, rank, ready_at) as (
                select t.type, head.priority, head.rank, head.ready_at
                from unnest(types) as t (type)
                cross join lateral (
                    select r.priority, {{rank}} as rank, r.ready_at
                    from runs as r
                    where r.type = t.type and r.worker is null and r.ready_at is not null
                    order by r.priority, {{rank}}, r.ready_at
                    limit 1
                ) as head
                union all
                select q.type, head.priority, head.rank, head.ready_at
                from queued as q
                cross join lateral (
                    select r.priority, {{rank}} as rank, r.ready_at
                    from runs as r
                    where r.type = q.type and (r.priority, {{rank}}) > (q.priority, q.rank)
                        and r.worker is null and r.ready_at is not null
                    order by r.priority, {{rank}}, r.ready_at
                    limit 1
                ) as head
            )
            select min(q.ready_at)
            from queued as q
        ),
        (
            with recursive held (type, priority) as (
                select t.type, head.priority
                from unnest(types) as t (type)
                cross join lateral (
                    select r.priority
                    from runs as r
                    where r.type = t.type and r.worker is not null
                    order by r.priority
                    limit 1
                ) as head
                union all
                select h.type, head.priority
                from held as h
                cross join lateral (
                    select r.priority
                    from runs as r
                    where r.type = h.type and r.priority > h.priority and r.worker is not null
                    order by r.priority
                    limit 1
                ) as head
            )
            select min(first.ready_at)
            from held as h
            cross join lateral (
                select r.ready_at
                from runs as r
                where r.type = h.type and r.priority = h.priority
                    and r.worker is not null and r.worker <> by_worker
                order by r.ready_at
                limit 1
            ) as first
        )
    ));
end
$$;
