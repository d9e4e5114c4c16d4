-- Returns the offered types that have a queued or a held run. `offered` is sorted by code point.
--
-- Each step seeks the first run whose type is the sought one or comes after it. The next step seeks the first offered
-- type after the type of that run. So the number of steps is bounded by the types that have runs and by those that are
-- offered. An idle worker that offers a thousand types pays for one. `runs_queue`, `runs_held`
create function present_v1(offered text[]) returns text[]
    language plpgsql stable
    as $$
begin
    return array(
        with recursive queued (type, is_offered, sought, place) as (
            select null collate "C", false, offered[1], 1
            union all
            select
                first.type,
                first.type = q.sought or first.type = offered[next.place - 1],
                offered[next.place],
                next.place
            from queued as q
            cross join lateral (
                select r.type
                from runs as r
                where r.type >= q.sought and r.worker is null and r.ready_at is not null
                order by r.type
                limit 1
            ) as first
            cross join lateral (
                select
                    case when first.type = q.sought then q.place else width_bucket(first.type, offered) end + 1 as place
                offset 0
            ) as next
        ),
        held (type, is_offered, sought, place) as (
            select null collate "C", false, offered[1], 1
            union all
            select
                first.type,
                first.type = q.sought or first.type = offered[next.place - 1],
                offered[next.place],
                next.place
            from held as q
            cross join lateral (
                select r.type
                from runs as r
                where r.type >= q.sought and r.worker is not null
                order by r.type
                limit 1
            ) as first
            cross join lateral (
                select
                    case when first.type = q.sought then q.place else width_bucket(first.type, offered) end + 1 as place
                offset 0
            ) as next
        )
        select q.type
        from queued as q
        where q.is_offered
        union
        select q.type
        from held as q
        where q.is_offered
    );
end
$$;
