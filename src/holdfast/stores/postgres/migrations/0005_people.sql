-- What people see and use: views with singular names, which stay as they are while tables change, and the functions
-- with which producers in plain SQL cancel, send and emit. Payloads are shown as `json`: `jsonb` refuses some of them.

-- A text as JSON; null if it is none: what somebody has written by hand must not hide all other rows.
create function json_or_null(value text) returns json
    language plpgsql immutable strict parallel restricted
    as $$
begin
    return value::json;
exception
    when data_exception or program_limit_exceeded then
        return null;
end
$$;

create view entry as
    select run_id, location, kind, state, position, attempts,
        json_or_null(result) as result,
        json_or_null(error) as error,
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
        json_or_null(payload) as payload,
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
        json_or_null(payload) as payload,
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
        json_or_null(names) as names,
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
        json_or_null(coalesce(data, '{}')) as data,
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
        json_or_null(types) as types,
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

-- What producers in SQL say is checked here, by the rules of Python: `core/text.py` for names, `core/codec.py` for values.
-- Both lists and limits are filled in from there. A value is accepted exactly if Python can read it.

create function check_text_v1(what text, value text, most integer default {{name_limit}}) returns void
    language plpgsql immutable parallel safe
    as $$
declare
    refused constant text := '[{{refused_range}}]';
    shown constant text := quote_literal(regexp_replace(left(value, 80), refused, chr(65533), 'g'));
begin
    if value is null or length(value) not between 1 and most then
        raise exception '% %: it has 1 to % characters', what, coalesce(shown, 'null'), most
            using errcode = 'invalid_parameter_value';
    end if;
    if value ~ refused then
        raise exception '% %: it has the character U+%, which no name, key, topic or tag may have',
            what, shown, lpad(upper(to_hex(ascii(substring(value from refused)))), 4, '0')
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- A name that may stand in a location.
create function check_name_v1(what text, value text) returns void
    language plpgsql immutable parallel safe
    set search_path from current
    as $$
begin
    perform check_text_v1(what, value);
    if value ~ '[/#]|^[~+]' then
        raise exception '% %: it has no / or #, and does not begin with ~ or +', what, quote_literal(value)
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- Numbers of a JSON text without its strings. A number is read as a double unless it is whole, and must not become
-- infinite by that, nor zero unless it is. Only those are looked at that could; there are rarely any.
create function check_numbers_v1(what text, outside text) returns void
    language plpgsql immutable parallel safe
    as $$
declare
    -- From here on, a number is nearer to the next power of two than to the largest double; up to there, nearer to zero than
    -- to the smallest one.
    too_large constant numeric := {{too_large}};
    too_small constant numeric := {{too_small}};
    token text;
    digits text;
    exponent text;
    magnitude integer;
begin
    for token in
        select number[1]
        from regexp_matches(outside, '([0-9][0-9.]*(?:[eE][+-]?[0-9]+)?)', 'g') as number
        where length(number[1]) >= 200 or number[1] ~ '[eE][+-]?0*[0-9]{3}'
    loop
        digits := translate(substring(token from '^[0-9.]+'), '.', '');
        if length(digits) > {{digit_limit}} then
            raise exception '% has a number of % digits; the limit is {{digit_limit_shown}}',
                what, ltrim(to_char(length(digits), '999,999,999'))
                using errcode = 'invalid_parameter_value';
        end if;
        continue when token !~ '[.eE]' or digits !~ '[1-9]';
        exponent := coalesce(substring(token from '[eE]([+-]?[0-9]+)$'), '0');
        -- The power of ten of the first digit that is not zero. An exponent that is too long to count is far out.
        magnitude := case
                when length(ltrim(exponent, '+-0')) > 6 then case when exponent like '-%' then -999999 else 999999 end
                else exponent::integer
            end
            + length(split_part(regexp_replace(token, '[eE].*', ''), '.', 1)) - 1
            - (length(digits) - length(ltrim(digits, '0')));
        digits := ltrim(digits, '0');
        if magnitude > 308 or (magnitude = 308
                and (rpad(digits, 309, '0') || '.' || substr(digits, 310) || '0')::numeric >= too_large) then
            raise exception '% has the number %, which is too large: the largest is about 1.8e308', what, left(token, 80)
                using errcode = 'invalid_parameter_value';
        end if;
        if magnitude < -324 or (magnitude = -324 and (left(digits, 1) || '.' || substr(digits, 2, 40) || '0')::numeric
                <= too_small) then
            raise exception '% has the number %, which would be read as zero', what, left(token, 80)
                using errcode = 'invalid_parameter_value';
        end if;
    end loop;
end
$$;

-- How many levels deep a JSON text without its strings is, if that is not too deep.
create function check_depth_v1(what text, outside text) returns void
    language plpgsql immutable parallel safe
    as $$
declare
    brackets text := translate(regexp_replace(outside, '[^][{}]', '', 'g'), '{}', '[]');
begin
    for level in 1 .. {{depth_limit}} loop
        brackets := replace(brackets, '[]', '');  -- the innermost ones
        exit when brackets = '';
    end loop;
    if brackets <> '' then
        raise exception '% is nested deeper than {{depth_limit}} levels', what
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- Refuses a text that Python could not read as JSON, or would read as something else; and one that is no object if it
-- has to be one. `json` accepts more than Python reads, and `jsonb` drops what is there twice.
create function check_payload_v1(what text, payload text, is_object boolean) returns void
    language plpgsql immutable parallel restricted
    set search_path from current
    as $$
declare
    outside text;
    pairs integer;
    plain text;
    has_surrogates constant boolean := payload ~ '\\u[dD][89a-fA-F]';
begin
    if octet_length(payload) > {{value_limit}} then
        raise exception '% has % bytes; the limit is {{value_limit_shown}}: store it elsewhere and pass where',
            what, octet_length(payload)
            using errcode = 'invalid_parameter_value';
    end if;
    begin
        if json_typeof(payload::json) <> 'object' and is_object then
            raise exception '% %: it is a JSON object, of the parameters by name', what, quote_literal(left(payload, 80))
                using errcode = 'invalid_parameter_value';
        end if;
    exception
        when invalid_text_representation then
            raise exception '% %: it is not JSON', what, quote_literal(left(payload, 80))
                using errcode = 'invalid_text_representation';
    end;
    outside := regexp_replace(payload, '"(?:[^"\\]|\\.)*"', '', 'g');
    if outside ~ '[0-9.]{190}|[eE][+-]?0*[0-9]{3}' then
        perform check_numbers_v1(what, outside);
    end if;
    if length(outside) - length(translate(outside, '[{', '')) > {{depth_limit}} then
        perform check_depth_v1(what, outside);
    end if;
    pairs := length(outside) - length(replace(outside, ':', ''));
    if pairs > 1 or has_surrogates then
        -- `jsonb` refuses NUL, which Python does not.
        plain := regexp_replace(payload, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ue000\\uf8ff\\ue000', 'g');
        begin
            plain := plain::jsonb::text;
        exception
            when invalid_text_representation then
                raise exception '% %: it has half of a surrogate pair (\ud800 to \udfff), which is no character',
                    what, quote_literal(left(payload, 80))
                    using errcode = 'invalid_text_representation';
        end;
    end if;
    if pairs > 1 then
        outside := regexp_replace(plain, '"(?:[^"\\]|\\.)*"', '', 'g');
        if length(outside) - length(replace(outside, ':', '')) < pairs then
            raise exception '% %: an object in it has the same key twice', what, quote_literal(left(payload, 80))
                using errcode = 'invalid_parameter_value';
        end if;
    end if;
end
$$;

-- Refuses a row of the view `intent` that no worker could carry out. Rows of Python say when they start, those of the
-- view cannot: only these are looked at.
create function check_intent_v1() returns trigger
    language plpgsql
    set search_path from current
    as $$
declare
    tag record;
begin
    perform check_name_v1('type', new.type);
    if new.type ~ '[{{not_in_types_range}}]' then
        raise exception 'type %: it has no blanks, commas, quotes or stars', quote_literal(new.type)
            using errcode = 'invalid_parameter_value';
    end if;
    perform check_text_v1('id', new.id);
    if new.key is not null then
        perform check_text_v1('idempotency_key', new.key, {{key_limit}});
    end if;
    if new.priority not between 0 and 255 then
        raise exception 'priority %: it is a number from 0 (first) to 255 (last)', new.priority
            using errcode = 'invalid_parameter_value';
    end if;
    if new.ready_at is null or not isfinite(new.ready_at)
        or micros(new.ready_at) not between {{first_instant}} and {{last_instant}} then
        raise exception 'run_at %: it is an instant in the years 1 to 9999; leave it out to begin at once',
            coalesce(new.ready_at::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if new.tags is not null then
        if jsonb_typeof(new.tags) <> 'object' then
            raise exception 'tags %: they are a JSON object of short strings, such as {"customer": "c_1"}',
                left(new.tags::text, 80)
                using errcode = 'invalid_parameter_value';
        end if;
        for tag in select key as name, value from jsonb_each(new.tags) loop
            if jsonb_typeof(tag.value) <> 'string' then
                raise exception 'tags %: they are a JSON object of short strings, such as {"customer": "c_1"}',
                    left(new.tags::text, 80)
                    using errcode = 'invalid_parameter_value';
            end if;
            perform check_text_v1('name of a tag', tag.name);
            perform check_text_v1('value of tag ' || quote_literal(tag.name), tag.value #>> '{}');
        end loop;
    end if;
    perform check_payload_v1('payload', new.payload, true);
    return new;
end
$$;

create trigger check_intent
    before insert on runs
    for each row
    when (new.start_at is null)
    execute function check_intent_v1();

-- Has workers look now, who would otherwise see what was inserted when they look next. A notification counts when it
-- is committed, with what it tells of.
create function notify(type text default null) returns void
    language sql volatile
    set search_path from current
    as $$ select pg_notify(current_schema(), json_build_array('', coalesce(type, ''))::text) $$;

comment on function notify is 'Have idle workers look for runs (of a type) at once, instead of when they look next.';

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
