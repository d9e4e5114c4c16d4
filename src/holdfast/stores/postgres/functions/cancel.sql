-- Cancel a run. A run that was never claimed ends here, if nothing has arrived and it neither has a slot nor waits for
-- one. For any other run it leaves a request, and a worker decides by the rules.
create function cancel(run_id text, reason text default 'cancelled with SQL') returns boolean
    {{producer}}
    as $$
declare
    request constant text := new_id();
    now constant bigint := micros(clock_timestamp());
    why constant text := coalesce(reason, '');
    current record;
begin
    perform check_payload_v1('reason', to_json(why)::text, false);
    -- Locked first: only a later statement sees the waits that the previous lock holder has written.
    perform from runs as r where r.id = cancel.run_id for no key update;
    update runs as r
    set state = 'cancelled',
        token = 1,
        start_at = coalesce(r.start_at, micros(r.ready_at)),
        ready_at = null,
        claim_id = null,
        crashes = 0,
        error = json_build_object('type', 'Cancelled', 'message', why)::text,
        updated_at = now,
        finished_at = now,
        purge_at = now + r.retention
    where r.id = cancel.run_id
      and r.state = 'pending'
      and r.token = 0
      and r.arrivals = 0
      and r.parent_location is null
      and r.slots is null
      and not exists (select from waits as w where w.run_id = r.id)
    returning r.id, r.type, r.state
    into current;
    if found then
        insert into audits (run_id, event, at, data)
        values (
            current.id,
            'cancelled',
            now,
            json_build_object('reason', why, 'by', 'sql:' || session_user, 'request', request)::text
        );
        perform notify();
        return true;
    end if;
    select r.id, r.type, r.state
    from runs as r
    where r.id = cancel.run_id
      and r.deleted_at is null
    into current;
    if not found then
        raise exception 'there is no run %', coalesce(quote_literal(cancel.run_id), 'null')
            using errcode = 'no_data_found';
    end if;
    if current.state in ('succeeded', 'failed', 'cancelled') then
        return false;
    end if;
    insert into requests (body)
    values (json_build_object(
        'kind', 'cancel',
        'run_id', current.id,
        'request', json_build_object('id', request, 'reason', why)
    )::text);
    perform notify(current.type);
    return true;
end
$$;

comment on function cancel is
    'Cancel a run: at once if no worker has claimed it yet, otherwise by the next worker, which first undoes its '
    'steps. Returns false if the run has already ended.';

revoke execute on function cancel from public;
