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
