-- Write a request to publish an event. The next worker carries it out.
create function emit(topic text, payload json default 'null', id text default new_id()) returns text
    {{producer}}
    as $$
begin
    perform check_text_v1('topic', emit.topic);
    perform check_text_v1('id', emit.id);
    perform check_payload_v1('payload', emit.payload::text, false);
    insert into requests (body)
    values (json_build_object(
        'kind', 'emit',
        'event', json_build_object(
            'id', emit.id,
            'topic', emit.topic,
            'payload', coalesce(emit.payload::text, 'null')
        )
    )::text);
    perform notify();
    return emit.id;
end
$$;

comment on function emit is
    'Publish an event on a topic. The next worker carries this out. Returns the id of the event: emitting it again '
    'with the same id is harmless.';

revoke execute on function emit from public;
