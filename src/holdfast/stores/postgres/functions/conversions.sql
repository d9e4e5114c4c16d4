-- Conversions: of JSON, and between times and the numbers that stand for them.

-- Returns a time in microseconds as a `timestamptz`. `micros` says why the function is written this way.
create function instant(micros bigint) returns timestamptz
    language sql stable strict parallel safe
    as $$ select timestamptz 'epoch' + int8larger(micros, -210866716800000000) * interval '1 microsecond' $$;

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

-- Returns the time of an operation: the given one, or the server's. It uses nothing of this schema, so that Postgres
-- can inline it.
create function time_v1(at bigint) returns bigint
    language sql volatile parallel safe
    as $$ select coalesce(at, (extract(epoch from clock_timestamp()) * 1000000)::bigint) $$;

-- Returns a JSON column as JSON. An invalid text, which only a person can have written, becomes a string. So the
-- decoder fails for that row, and all other rows can still be read.
create function json_of(value text) returns json
    language plpgsql immutable strict parallel restricted
    as $$
begin
    return value::json;
exception
    when data_exception or program_limit_exceeded then
        return to_json(value);
end
$$;

-- Returns a text as JSON, or null if it is not valid, so that a row that a person has edited does not hide all others.
create function json_or_null(value text) returns json
    language plpgsql immutable strict parallel restricted
    as $$
begin
    return value::json;
exception
    when data_exception or program_limit_exceeded then
        return null;
end
$$;

-- Returns a JSON array of strings as a `text[]`, or an empty one for null.
create function text_array_v1(list json) returns text[]
    language plpgsql immutable
    as $$
begin
    return (
        select array(select json_array_elements_text(list))
    );
end
$$;

-- Returns a member of a JSON object as text, for objects that are built as text. The function is stable like its parts.
-- Otherwise Postgres would not inline it, and would plan it at each call.
create function named_v1(name text, value json) returns text
    language sql stable
    as $$ select '"' || name || '":' || value $$;
