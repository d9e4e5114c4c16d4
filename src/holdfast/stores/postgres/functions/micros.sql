-- A `timestamptz` as microseconds. Postgres replaces a call of this function by its text, which saves most of the time
-- of the call. It does so only if the function is stable like its parts, uses its argument once, and has strict parts
-- only; `least` and `greatest` are not strict. An infinite instant, which only a person can have written, becomes the
-- first or the last one.
create function micros(moment timestamptz) returns bigint
    language sql stable strict parallel safe
    as $$
        select (
            numeric_smaller(numeric_larger(extract(epoch from moment), -9223372036854), 9223372036854) * 1000000
        )::bigint
    $$;
