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
