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
