-- Write the one entry that a run gained, if the run is still as its holder knew it and nothing has arrived; else nothing
-- is written, and the answer null. Without a batch, and all that goes with one.
create function step_v1(
    of_run text, under bigint, seen bigint, location text, kind text, state text, "position" bigint, attempts integer,
    since bigint, started_at bigint, finished_at bigint, retry_at bigint, has_undo boolean, ref text, error text,
    result text, at bigint
) returns bigint
    language plpgsql
    set search_path from current
    set enable_seqscan = off
    set cpu_index_tuple_cost = 1
    as $$
#variable_conflict use_column
begin
    perform
    from runs as r
    where r.id = of_run
        and r.token = under
        and coalesce(r.worker, '') <> ''
        and not r.is_pausing
        and r.arrivals = step_v1.seen
    for no key update;
    if not found then
        return null;
    end if;
    insert into entries as known (
        run_id, location, kind, state, position, attempts, since, started_at, finished_at, retry_at, token, has_undo,
        ref, error, result
    )
    values (
        of_run, step_v1.location, step_v1.kind, step_v1.state, step_v1."position", step_v1.attempts, step_v1.since,
        step_v1.started_at, step_v1.finished_at, step_v1.retry_at, under, step_v1.has_undo, step_v1.ref,
        step_v1.error, step_v1.result
    )
    on conflict (run_id, location) do update
    set kind = excluded.kind, state = excluded.state, position = excluded.position, attempts = excluded.attempts,
        since = excluded.since, started_at = excluded.started_at, finished_at = excluded.finished_at,
        retry_at = excluded.retry_at, token = excluded.token, has_undo = excluded.has_undo, ref = excluded.ref,
        error = excluded.error, result = excluded.result
    where known.position = 0
        and (excluded.position > 0 or excluded.attempts > known.attempts);
    return time_v1(at);
end
$$;
