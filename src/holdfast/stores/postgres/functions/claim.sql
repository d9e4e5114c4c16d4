-- Lease the first due runs of some types, in claim order, with their histories and inboxes. `offered` is sorted by
-- code point; `since_new` and `since_child` are the counts of `holdfast.core.claim_order.Shares`.
--
-- Each priority begins with these counts. Begun run n has the turn 2 * (n - 1 + since_child) and child n has the turn
-- 2 * (share - 1) * n - 1, so one child follows every share - 1 begun runs. The runs of both ranks form one sequence,
-- which is merged with the new starts in the same way, by `since_new`.
--
-- Other claims may have locked some candidates, so this claim reads more of them than it needs. If all are locked, it
-- reads four times as many. A separate statement then reads the leased runs, because only a statement that begins after
-- the lock sees everything that the last holder has written.
--
-- Disabled types are skipped. If runs of limited types are due, nothing is leased, because handing out slots takes more
-- than one statement. The answer then names the limited types and the others to claim. A change of the rules of types
-- waits until all claims under the old rules have ended, so no run is leased without being counted by a limit.
create function claim_v1(
    claim_id text, by_worker text, offered text[], wanted integer, lease bigint, by_python text,
    may_suspect boolean, is_repeat boolean, since_new integer, since_child integer, at bigint
) returns text
    {{operation}}
    set enable_bitmapscan = off
    as $$
declare
    now constant bigint := time_v1(at);
    due constant timestamptz := instant(now);
    spare integer := wanted * 4 + 16;
    queued text[];
    wanted_types text[];
    disabled text[];
    limited text[];
    candidates text[];
    suspect text;
    claimed text[];
    worn text[];
    next_ready bigint;
begin
    if is_repeat then
        claimed := array(
            select r.id
            from runs as r
            where r.worker = by_worker and r.worker is not null
                and r.type = any(present_v1(offered))
                and r.claim_id = claim_v1.claim_id
        );
        next_ready := now;
    end if;
    if coalesce(cardinality(claimed), 0) = 0 then
        lock table types in row share mode;
        -- Up to four types, seeking each one costs no more than finding out which of them are present.
        queued := case when cardinality(offered) > 4 then present_v1(offered) else offered end;
        select array_agg(t.name) filter (where not t.is_enabled), array_agg(t.name) filter (where t.is_enabled)
        into disabled, limited
        from types as t
        where t.name = any(queued) and (t.is_limited or not t.is_enabled);
        if disabled is not null then
            queued := array(select t.type from unnest(queued) as t (type) where t.type <> all(disabled));
        end if;
        wanted_types := queued;
        if limited is not null then
            wanted_types := array(select t.type from unnest(queued) as t (type) where t.type <> all(limited));
            if exists (select from heads_v1(limited, due, 1, 0, may_suspect::integer)) then
                return json_build_object(
                    'now', now,
                    'limited', limited,
                    'others', wanted_types,
                    'rated', array(select t.name from types as t where t.name = any(limited) and t.rate is not null),
                    'has_requests', exists (select from requests)
                )::text;
            end if;
        end if;
        for attempt in 1 .. 3 loop
            select array_agg(c.id order by c.priority, c.turn), min(c.id) filter (where c.is_suspect)
            into candidates, suspect
            from (
                select n.id, n.priority, n.is_suspect,
                    case
                        when n.rank = {{new}} then 2 * ({{share}} - 1) * n.number - 1
                        else 2 * (n.number - 1 + since_new)
                    end as turn
                from (
                    select b.id, b.priority, b.rank, b.is_suspect,
                        row_number() over (partition by b.priority, b.rank = {{new}} order by b.turn) as number
                    from (
                        select f.id, f.priority, f.rank, f.is_suspect,
                            case
                                when f.rank = {{child}} then 2 * ({{share}} - 1) * f.number - 1
                                else 2 * (f.number - 1 + since_child)
                            end as turn
                        from (
                            select h.id, h.priority, h.rank, h.is_suspect,
                                row_number() over (
                                    partition by h.priority, h.rank order by h.ready_at, h.id collate "C"
                                ) as number
                            from heads_v1(wanted_types, due, wanted, spare, may_suspect::integer) as h
                        ) as f
                    ) as b
                ) as n
                order by n.priority, turn
                limit spare
            ) as c;
            exit when candidates is null;
            with chosen as (
                select r.id, c.place, r.worker as lost
                from unnest(candidates) with ordinality as c (id, place)
                join runs as r on r.id = c.id
                where r.ready_at <= due
                    and (c.id = suspect or r.crashes + (r.worker is not null)::integer < {{suspect_crashes}})
                order by c.place
                limit wanted
                for no key update of r skip locked
            ),
            leased as (
                update runs as r
                set state = case when r.rollback is null then 'running' else 'rolling_back' end,
                    worker = by_worker,
                    claim_id = claim_v1.claim_id,
                    token = r.token + 1,
                    start_at = coalesce(r.start_at, micros(r.ready_at)),
                    ready_at = instant(now + lease),
                    crashes = r.crashes + (c.lost is not null)::integer,
                    attempt = r.attempt + (c.lost is not null or r.state = 'blocked')::integer,
                    first_claimed_at = coalesce(r.first_claimed_at, now),
                    python = coalesce(r.python, by_python),
                    updated_at = now
                from chosen as c
                where r.id = c.id
                returning r.id, r.token, r.crashes, c.lost, c.place
            ),
            noted as (
                insert into audits (run_id, event, at, data)
                select l.id, 'claimed', now,
                    case
                        when l.lost is null then json_build_object('worker', by_worker, 'token', l.token)
                        else json_build_object(
                            'worker', by_worker, 'token', l.token, 'crashes', l.crashes, 'lost', l.lost
                        )
                    end::text
                from leased as l
            )
            select
                coalesce(array_agg(l.id order by l.place), '{}'),
                array_agg(l.id) filter (where l.token % {{trim_every}} = 0)
            into claimed, worn
            from leased as l;
            exit when cardinality(claimed) > 0;
            spare := spare * 4;
        end loop;
        if worn is not null then
            perform trim_v1(worn);
        end if;
        if cardinality(claimed) >= wanted then
            next_ready := now;  -- there may be more
        else
            next_ready := next_ready_v1(queued, by_worker);
        end if;
    end if;
    return json_build_object(
        'now', now,
        'next_ready_at', next_ready,
        'has_requests', exists (select from requests),
        'leases', leases_of_runs_v1(claimed, is_repeat)
    )::text;
end
$$;
