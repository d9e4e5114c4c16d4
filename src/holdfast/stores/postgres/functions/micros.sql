-- Returns a `timestamptz` as microseconds. Postgres inlines this function, which saves most of the time of a call. It
-- inlines a function only if it is stable like its parts, uses its argument once, and has only strict parts; `least`
-- and `greatest` are not strict. An infinite instant, which only a person can have written, becomes the first or the
-- last instant.
create function micros(moment timestamptz) returns bigint
    language sql stable strict parallel safe
    as $$
        select (
            numeric_smaller(numeric_larger(extract(epoch from moment), -9223372036854), 9223372036854) * 1000000
        )::bigint
    $$;
