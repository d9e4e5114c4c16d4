-- SQL producers: the functions for people, and the checks of what they pass.

-- Make idle workers look at once. Without it they find inserted runs at their next poll. Postgres sends the
-- notification when the transaction commits, so the workers then see its rows.
create function notify(type text default null) returns void
    language sql volatile
    set search_path from current
    as $$ select pg_notify(current_schema(), json_build_array('', coalesce(type, ''))::text) $$;

comment on function notify is 'Make idle workers look for runs (of a type) at once, and not only at their next poll.';

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

-- Refuse a row of the view `intent` that no worker could carry out, and store its options. The trigger calls it only for rows without
-- `start_at`: Python always sets it, and has checked its rows.
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
    if new.parent_id is not null then
        perform check_text_v1('parent_id', new.parent_id);
    end if;
    if new.asked_undelivered not in ({{undelivered}}) then
        raise exception 'undelivered %: it is one of {{undelivered_shown}}', quote_literal(left(new.asked_undelivered, 80))
            using errcode = 'invalid_parameter_value';
    end if;
    if new.asked_max_attempts not between 1 and {{attempts_limit}} then
        raise exception 'max_attempts %: it is a number from 1 to {{attempts_limit_shown}}', new.asked_max_attempts
            using errcode = 'invalid_parameter_value';
    end if;
    if length(new.asked_by) > {{actor_limit}} then
        raise exception 'by has % characters; it has at most {{actor_limit}}', length(new.asked_by)
            using errcode = 'invalid_parameter_value';
    end if;
    new.retention := check_length_v1('retention', new.asked_retention);
    new.options := json_strip_nulls(json_build_object(
        'max_run', check_length_v1('max_run', new.asked_max_run),
        'max_suspend', check_length_v1('max_suspend', new.asked_max_suspend),
        'undelivered', new.asked_undelivered,
        'max_attempts', new.asked_max_attempts,
        'by', coalesce(new.asked_by, 'sql:' || session_user)
    ))::text;
    new.asked_max_run := null;
    new.asked_max_suspend := null;
    new.asked_retention := null;
    new.asked_undelivered := null;
    new.asked_max_attempts := null;
    new.asked_by := null;
    return new;
end
$$;

-- Refuse a name that cannot be part of a location.
create function check_name_v1(what text, value text) returns void
    language plpgsql immutable parallel safe
    set search_path from current
    as $$
begin
    perform check_text_v1(what, value);
    if value ~ '[/#]|^[~+@]' then
        raise exception '% %: it has no / or #, and does not begin with ~, + or @', what, quote_literal(value)
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- Refuse what `core/location.py` refuses as a name, key, topic or tag. All `check_…` functions repeat rules of Python for
-- the values of SQL producers. Their limits are filled in from Python.
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

-- Returns a length of time in microseconds if it is positive and not too long, and null for null. A month counts as 30
-- days, and a year as 365.25 days.
create function check_length_v1(what text, given interval) returns bigint
    language plpgsql immutable
    as $$
begin
    if given is null then
        return null;
    end if;
    if extract(epoch from given) <= 0 or extract(epoch from given) > {{length_limit_seconds}} then
        raise exception '% %: it is a length of time greater than zero, and at most 1,000 years', what, given
            using errcode = 'invalid_parameter_value';
    end if;
    return round(extract(epoch from given) * 1000000);
end
$$;

-- Refuse a number that Python would read as another value, in a JSON text without its strings. Python reads a number
-- that is not whole as a double, which may become infinite, or zero although the number is not zero. Only long numbers
-- and large exponents can have this problem, and they are rare.
create function check_numbers_v1(what text, outside text) returns void
    language plpgsql immutable parallel safe
    as $$
declare
    -- A number from `too_large` on is nearer to the next power of two than to the largest double. A number up to
    -- `too_small` is nearer to zero than to the smallest double.
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
        -- The power of ten of the first digit that is not zero. An exponent that is too long for an integer counts as
        -- very large or very small.
        magnitude := case
                when length(ltrim(exponent, '+-0')) > 6 then case when exponent like '-%' then -999999 else 999999 end
                else exponent::integer
            end
            + length(split_part(regexp_replace(token, '[eE].*', ''), '.', 1)) - 1
            - (length(digits) - length(ltrim(digits, '0')));
        digits := ltrim(digits, '0');
        if magnitude > 308 or (magnitude = 308
                and (rpad(digits, 309, '0') || '.' || substr(digits, 310) || '0')::numeric >= too_large) then
            raise exception '% has the number %, which is too large: the largest is about 1.8e308',
                what, left(token, 80)
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

-- Refuse a text that Python cannot read as JSON or would read as another value, and a text that is not an object where
-- an object is needed. The cast to `json` accepts more than Python does, and `jsonb` drops keys that occur twice.
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
            raise exception '% %: it is a JSON object, of the parameters by name',
                what, quote_literal(left(payload, 80))
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
        -- `jsonb` refuses NUL and Python accepts it, so it is replaced here.
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

-- Refuse a JSON text that is nested too deep. `outside` is the text without its strings.
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
