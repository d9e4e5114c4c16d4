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
