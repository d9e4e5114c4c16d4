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
