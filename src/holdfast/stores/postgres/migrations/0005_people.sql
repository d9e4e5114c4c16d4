-- What people see and use: views with singular names, which stay as they are while tables change, and the functions
-- with which producers in plain SQL cancel, send and emit. Payloads are cast to `json`: `jsonb` refuses some of them.

create view entry as
    select run_id, location, kind, state, position, attempts,
        result::json as result,
        error::json as error,
        ref, has_undo,
        instant(started_at) as started_at,
        instant(finished_at) as finished_at,
        instant(retry_at) as retry_at
    from entries;

comment on view entry is
    'Histories: what the operations of runs came to. A run that goes on reads them instead of doing them again.';
comment on column entry.run_id is 'Whose history it is part of.';
comment on column entry.location is 'The path of the operation inside the run.';
comment on column entry.kind is
    'step, tx, timer, message, event, child, send, emit, cancel, reply, loop, version, removed, rollback, undo or rounds.';
comment on column entry.state is 'started, retrying, or settled: done, failed, timed_out.';
comment on column entry.position is 'Its place in the order in which operations were settled; 0 while it is not.';
comment on column entry.attempts is 'How often it was tried.';
comment on column entry.result is 'What it came to.';
comment on column entry.error is 'Why it failed, or why its last attempt did.';
comment on column entry.ref is 'The other side: the id of the child or message, the number of the event.';
comment on column entry.has_undo is 'Whether there is something to undo if the run rolls back.';
comment on column entry.started_at is 'When it began.';
comment on column entry.finished_at is 'When it was settled.';
comment on column entry.retry_at is 'When it is tried again.';

create view message as
    select run_id, number, name,
        ref as id,
        payload::json as payload,
        instant(at) as sent_at
    from inbox
    where kind = 'message';

comment on view message is 'Messages that were sent to runs and not received yet.';
comment on column message.run_id is 'To whom.';
comment on column message.number is 'Its place among all that reached the run.';
comment on column message.name is 'Its name.';
comment on column message.id is 'Its id, which makes sending it again harmless.';
comment on column message.payload is 'What it says.';
comment on column message.sent_at is 'When it reached the inbox of the run.';

create view event as
    select number, topic, id,
        payload::json as payload,
        state, holder, reached,
        instant(at) as emitted_at,
        instant(nullif(taken_at, 0)) as taken_at
    from events;

comment on view event is 'Events that were published and are still kept.';
comment on column event.number is 'Its place in the order in which all events were published.';
comment on column event.topic is 'On which topic.';
comment on column event.id is 'Its id, which makes emitting it again harmless.';
comment on column event.payload is 'What it says.';
comment on column event.state is 'open for every run; of a queue: pending, handed to one run, or taken by it for good.';
comment on column event.holder is 'Of a queue: the run that was handed it.';
comment on column event.reached is 'How many waiting runs it reached when it was published.';
comment on column event.emitted_at is 'When it was published.';
comment on column event.taken_at is 'Of a queue: when it was taken for good.';

create view wait as
    select run_id, location, kind,
        names::json as names,
        count,
        instant(since) as since,
        instant(deadline) as deadline
    from waits;

comment on view wait is 'What runs wait for.';
comment on column wait.run_id is 'Who waits.';
comment on column wait.location is 'The operation that waits.';
comment on column wait.kind is 'time, retry, message, event, child, children or slot.';
comment on column wait.names is 'For what: names of messages (none: any), the topic, the id of the child, the group.';
comment on column wait.count is 'Of a group of children: how many have to end.';
comment on column wait.since is 'Since when.';
comment on column wait.deadline is 'Until when.';

create view audit as
    select number, run_id, event,
        coalesce(data, '{}')::json as data,
        instant(at) as at
    from audits;

comment on view audit is 'What happened to runs: each fact was written in the transaction that made it true.';
comment on column audit.number is 'Its place in the order of facts.';
comment on column audit.run_id is 'To which run.';
comment on column audit.event is 'What happened: claimed, suspended, woken, succeeded, cancelled, …';
comment on column audit.data is 'The particulars.';
comment on column audit.at is 'When.';

create view worker as
    select id, name, host, pid,
        types::json as types,
        concurrency,
        instant(started_at) as started_at,
        instant(heartbeat_at) as heartbeat_at
    from workers;

comment on view worker is 'Workers that are running, or died without saying so.';
comment on column worker.id is 'Its id, as in run.worker.';
comment on column worker.name is 'Its name, for people.';
comment on column worker.host is 'The machine it runs on.';
comment on column worker.pid is 'Its process there.';
comment on column worker.types is 'The types of runs it takes.';
comment on column worker.concurrency is 'How many runs it holds at most.';
comment on column worker.started_at is 'When it began.';
comment on column worker.heartbeat_at is 'When it was last heard of.';

comment on table meta is 'holdfast''s own: the version of this schema.';
comment on table runs is 'holdfast''s own; read the view run, and insert into the view intent.';
comment on table entries is 'holdfast''s own; read the view entry.';
comment on table inbox is 'holdfast''s own: what reached runs and was not received yet; read the view message.';
comment on table receipts is 'holdfast''s own: the ids of messages that were received, for a day.';
comment on table replies is 'holdfast''s own: what runs replied to messages, for a day.';
comment on table waits is 'holdfast''s own; read the view wait.';
comment on table run_values is 'holdfast''s own: values that runs let others see.';
comment on table events is 'holdfast''s own; read the view event, and publish with the function emit.';
comment on table topics is 'holdfast''s own: rules that were set for topics.';
comment on table letters is 'holdfast''s own: dead letters, which could not be delivered.';
comment on table audits is 'holdfast''s own; read the view audit.';
comment on table workers is 'holdfast''s own; read the view worker.';
comment on table requests is
    'holdfast''s own: what the functions cancel, send and emit leave for a worker to carry out.';

-- Whether a row may stand in `intent`. It raises with the reason if not, because a check option could only say that
-- something is wrong. It must refuse nothing that is accepted in Python: rows from there are seen through it, too.
create function check_intent_v1(
    id text, type text, payload text, key text, priority smallint, run_at timestamptz, tags jsonb
) returns boolean
    language plpgsql stable parallel safe
    cost 1000
    set search_path from current
    as $$
begin
    if type !~ '^[^ ,*''"/#~+][^ ,*''"/#]{0,199}$' or type ~ '[\x01-\x1f\x7f]' then
        raise exception
            'type %: it has 1 to 200 characters, no blanks, none of , * '' " / #, and does not begin with ~ or +',
            quote_literal(left(type, 80))
            using errcode = 'invalid_parameter_value';
    end if;
    if length(id) not between 1 and 200 or id ~ '[\x01-\x1f\x7f]' then
        raise exception 'id %: it has 1 to 200 printable characters', quote_literal(left(id, 80))
            using errcode = 'invalid_parameter_value';
    end if;
    if length(key) not between 1 and 500 or key ~ '[\x01-\x1f\x7f]' then
        raise exception 'idempotency_key %: it has 1 to 500 printable characters', quote_literal(left(key, 80))
            using errcode = 'invalid_parameter_value';
    end if;
    if priority not between 0 and 255 then
        raise exception 'priority %: it is a number from 0 (first) to 255 (last)', priority
            using errcode = 'invalid_parameter_value';
    end if;
    if run_at is null or not isfinite(run_at) then
        raise exception 'run_at %: it is an instant; leave it out to begin at once', coalesce(run_at::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if tags is not null and (jsonb_typeof(tags) <> 'object' or exists (
        select
        from jsonb_each(case when jsonb_typeof(tags) = 'object' then tags else '{}' end) as tag
        where jsonb_typeof(tag.value) <> 'string'
           or length(tag.key) not between 1 and 200
           or length(tag.value #>> '{}') not between 1 and 200
    )) then
        raise exception 'tags %: they are a JSON object of short strings, such as {"customer": "c_1"}',
            left(tags::text, 80)
            using errcode = 'invalid_parameter_value';
    end if;
    perform check_payload_v1('payload', payload, true);
    return true;
end
$$;

-- Whether a text is JSON, and an object if it has to be one, and not longer than any value may be.
create function check_payload_v1(what text, payload text, is_object boolean) returns void
    language plpgsql stable parallel safe
    as $$
begin
    if octet_length(payload) > 2097152 then
        raise exception '% has % bytes; the limit is 2 MiB: store it elsewhere and pass where',
            what, octet_length(payload)
            using errcode = 'invalid_parameter_value';
    end if;
    if json_typeof(payload::json) <> 'object' and is_object then
        raise exception '% %: it is a JSON object, of the parameters by name', what, quote_literal(left(payload, 80))
            using errcode = 'invalid_parameter_value';
    end if;
exception
    when invalid_text_representation then
        raise exception '% %: it is not JSON', what, quote_literal(left(payload, 80))
            using errcode = 'invalid_text_representation';
end
$$;

-- Has workers look now, who would otherwise see what was inserted when they look next. A notification counts when it
-- is committed, with what it tells of.
create function notify(type text default null) returns void
    language sql volatile
    set search_path from current
    as $$ select pg_notify(current_schema(), json_build_array('', coalesce(type, ''))::text) $$;

comment on function notify is 'Have idle workers look for runs (of a type) at once, instead of when they look next.';

create function check_text_v1(what text, value text) returns void
    language plpgsql immutable parallel safe
    as $$
begin
    if value is null or length(value) not between 1 and 200 or value ~ '[\x01-\x1f\x7f]' then
        raise exception '% %: it has 1 to 200 printable characters',
            what, coalesce(quote_literal(left(value, 80)), 'null')
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- The functions for producers have the rights of the schema's owner, so that a producer needs none on tables: a request
-- of his own making could ask for anything. They check all they are given, name what they find by the search path that
-- they keep (temporary tables come last in it), and nobody may call them but those who are let.

create function emit(topic text, payload json default 'null', id text default new_id()) returns text
    language plpgsql security definer
    set search_path from current
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
    'Publish an event on a topic; the next worker does. Gives back its id: emitting it again under the same one is '
    'harmless.';

revoke execute on function emit from public;
