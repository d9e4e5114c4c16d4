-- Block a run that cannot be decoded, if the worker holds it, or if no worker is named and it is due. Only a person can
-- correct its row, so there is no next try.
create function block_unreadable_v1(of_run text, by_worker text, reason text, at bigint) returns text
    language plpgsql
    set search_path from current
    as $$
declare
    now constant bigint := time_v1(at);
begin
    update runs
    set state = 'blocked',
        token = token + 1,
        worker = null,
        claim_id = null,
        ready_at = null,
        start_at = coalesce(start_at, micros(ready_at)),
        error = json_build_object('type', 'Unreadable', 'message', reason)::text,
        updated_at = now
    where id = of_run
      and (worker = by_worker or (by_worker is null and ready_at <= instant(now)));
    if not found then
        return 'false';
    end if;
    insert into audits (run_id, event, at, data)
    values (of_run, 'blocked', now, json_build_object('error', 'Unreadable: ' || reason)::text);
    return 'true';
end
$$;
