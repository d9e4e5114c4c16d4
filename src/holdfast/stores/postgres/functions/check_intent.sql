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
