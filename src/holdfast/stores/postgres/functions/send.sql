-- Write a request to send a message to a run. The next worker carries it out.
create function send(run_id text, name text, payload json default 'null', id text default new_id()) returns text
    {{producer}}
    as $$
declare
    current record;
begin
    perform check_name_v1('name', send.name);
    perform check_text_v1('id', send.id);
    perform check_payload_v1('payload', send.payload::text, false);
    select r.id, r.type, r.state
    from runs as r
    where r.id = send.run_id
      and r.deleted_at is null
    into current;
    if not found then
        raise exception 'there is no run %', coalesce(quote_literal(send.run_id), 'null')
            using errcode = 'no_data_found';
    end if;
    if current.state in ('succeeded', 'failed', 'cancelled') then
        raise exception 'run % has ended (%) and takes no more messages', quote_literal(current.id), current.state
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    insert into requests (body)
    values (json_build_object(
        'kind', 'send',
        'message', json_build_object(
            'id', send.id,
            'name', send.name,
            'payload', coalesce(send.payload::text, 'null'),
            'run_id', current.id
        )
    )::text);
    perform notify(current.type);
    return send.id;
end
$$;

comment on function send is
    'Send a message to a run that has not ended. The next worker delivers it. Returns the id of the message: sending '
    'it again with the same id is harmless.';

revoke execute on function send from public;
