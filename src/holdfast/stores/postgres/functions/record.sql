-- Write what runs gained, each entry that names one by its `n` and is to be written, unless what stands at its location is
-- settled or of a later attempt: `rules.supersedes` in the words of SQL.
create function record_v1(ids text[], tokens bigint[], is_written boolean[], gained json) returns void
    language plpgsql
    as $$
begin
    insert into entries as known (
        run_id, location, kind, state, position, attempts, since, started_at, finished_at, retry_at, token,
        has_undo, ref, error, result
    )
    select
        ids[e.n], e.location, e.kind, e.state, coalesce(e.position, 0), coalesce(e.attempts, 0),
        coalesce(e.since, 0), coalesce(e.started_at, 0), e.finished_at, e.retry_at, tokens[e.n],
        coalesce(e.has_undo, false), e.ref, e.error::text, e.result
    from json_to_recordset(gained) as e (
        n integer, location text, kind text, state text, position bigint, attempts integer, since bigint,
        started_at bigint, finished_at bigint, retry_at bigint, has_undo boolean, ref text, error json, result text
    )
    where is_written[e.n]
    on conflict (run_id, location) do update
    set kind = excluded.kind, state = excluded.state, position = excluded.position, attempts = excluded.attempts,
        since = excluded.since, started_at = excluded.started_at, finished_at = excluded.finished_at,
        retry_at = excluded.retry_at, token = excluded.token, has_undo = excluded.has_undo, ref = excluded.ref,
        error = excluded.error, result = excluded.result
    where known.position = 0
        and (excluded.position > 0 or excluded.attempts > known.attempts);
end
$$;
