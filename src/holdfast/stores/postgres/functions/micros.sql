-- Postgres puts the text of these two in the place of a call, which saves most of the time of a call. It does so only
-- if they are stable like what they are made of, have their argument once, and consist of strict functions: `least`
-- and `greatest` are not strict. An infinite instant, which only a hand can have written, is the last or the first
-- there is.
create function micros(moment timestamptz) returns bigint
    language sql stable strict parallel safe
    as $$
        select (
            numeric_smaller(numeric_larger(extract(epoch from moment), -9223372036854), 9223372036854) * 1000000
        )::bigint
    $$;
