-- Returns the first due runs of the lanes of some types, in no order and without a lock: of each priority and rank at
-- least the first `wanted` runs that are not suspects, about `spare` in total, and the first `suspects` suspects.
--
-- The heads of lanes with the same priority and rank are numbered. Lane n adds at most `size + 1 - n` runs to the
-- first `size` of them, because the n - 1 heads before it come first.
--
-- The function is written in SQL, so that Postgres inlines a call and plans it together with the caller, once per
-- session. `runs_queue`, `runs_held`, `runs_crashed`
create function heads_v1(wanted_types text[], due timestamptz, wanted integer, spare integer, suspects integer)
    returns table (id text, priority smallint, rank integer, ready_at timestamptz, is_suspect boolean)
    language sql stable
    as $$
        with recursive queued (type, priority, rank, ready_at, id) as (
            select t.type, head.priority, head.rank, head.ready_at, head.id
            from unnest(wanted_types) as t (type)
            cross join lateral (
                select r.priority, {{rank}} as rank, r.ready_at, r.id
                from runs as r
                where r.type = t.type
                    and r.worker is null and r.ready_at is not null
                    and r.crashes < {{suspect_crashes}}
                order by r.priority, {{rank}}, r.ready_at, r.id
                limit 1
            ) as head
            union all
            select q.type, head.priority, head.rank, head.ready_at, head.id
            from queued as q
            cross join lateral (
                select r.priority, {{rank}} as rank, r.ready_at, r.id
                from runs as r
                where r.type = q.type and (r.priority, {{rank}}) > (q.priority, q.rank)
                    and r.worker is null and r.ready_at is not null
                    and r.crashes < {{suspect_crashes}}
                order by r.priority, {{rank}}, r.ready_at, r.id
                limit 1
            ) as head
        ),
        lanes (type, priority, rank, place) as (
            select q.type, q.priority, q.rank,
                row_number() over (partition by q.priority, q.rank order by q.ready_at, q.id)
            from queued as q
            where q.ready_at <= due
        ),
        room (size) as (
            select greatest(wanted, spare / greatest(1, count(*)))
            from lanes as l
            where l.place = 1
        ),
        held (type, priority, ready_at) as (
            select t.type, head.priority, head.ready_at
            from unnest(wanted_types) as t (type)
            cross join lateral (
                select r.priority, r.ready_at
                from runs as r
                where r.type = t.type and r.worker is not null
                order by r.priority, r.ready_at
                limit 1
            ) as head
            union all
            select h.type, head.priority, head.ready_at
            from held as h
            cross join lateral (
                select r.priority, r.ready_at
                from runs as r
                where r.type = h.type and r.priority > h.priority and r.worker is not null
                order by r.priority, r.ready_at
                limit 1
            ) as head
        )
        select run.id, l.priority, l.rank, run.ready_at, false
        from lanes as l
        cross join lateral (
            select r.id, r.ready_at
            from runs as r
            where r.type = l.type and r.priority = l.priority and {{rank}} = l.rank
                and r.worker is null and r.ready_at <= due
                and r.crashes < {{suspect_crashes}}
            order by r.ready_at, r.id
            limit (select room.size from room) + 1 - l.place
        ) as run
        where l.place <= (select room.size from room)
        union all
        select run.id, h.priority, {{begun}}, run.ready_at, false
        from held as h
        cross join lateral (
            select r.id, r.ready_at
            from runs as r
            where r.type = h.type and r.priority = h.priority
                and r.worker is not null and r.ready_at <= due
                and r.crashes + 1 < {{suspect_crashes}}
            order by r.ready_at, r.id
            limit (select room.size from room)
        ) as run
        where h.ready_at <= due
        union all (
            select run.id, run.priority, {{begun}}, run.ready_at, true
            from unnest(wanted_types) as t (type)
            cross join lateral (
                select r.id, r.priority, r.ready_at
                from runs as r
                where suspects > 0
                    and r.type = t.type and r.crashes > 0 and r.ready_at is not null and r.ready_at <= due
                    and r.crashes + (r.worker is not null)::integer >= {{suspect_crashes}}
                order by r.priority, r.ready_at, r.id
                limit suspects
            ) as run
            order by run.priority, run.ready_at, run.id
            limit suspects
        )
    $$;
