-- End a run, with its last entries, if it is still as its holder knew it, nothing ever arrived, and nobody must hear of
-- its end; else nothing is written, and the answer null.
create function finish_v1(
    of_run text, under bigint, state text, result text, error text, event text, data text, gained text, at bigint
) returns bigint
    language plpgsql
    set search_path from current
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set cpu_index_tuple_cost = 1
    as $$
#variable_conflict use_column
declare
    now constant bigint := time_v1(at);
begin
    update runs as r
    set state = finish_v1.state,
        ready_at = null,
        worker = null,
        claim_id = null,
        crashes = 0,
        updated_at = now,
        finished_at = now,
        suspended_at = null,
        rollback = null,
        result = finish_v1.result,
        error = finish_v1.error
    where r.id = of_run
        and r.token = under
        and coalesce(r.worker, '') <> ''
        and not r.is_pausing
        and r.arrivals = 0
        and r.slots is null
        and r.retention is null
        and (r.parent_id is null or r.parent_location is null)
        and not exists (
            select
            from runs as child
            where child.parent_id = of_run and child.on_close = 'cancel' and child.finished_at is null
        );
    if not found then
        return null;
    end if;
    insert into audits (run_id, event, at, data)
    values (of_run, finish_v1.event, now, finish_v1.data);
    if gained is not null then
        perform record_v1(array[of_run], array[under], array[true], gained::json);
    end if;
    return now;
end
$$;
