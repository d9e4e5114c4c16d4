-- The time of an operation. It names nothing of this schema, so that its text is put in place of a call.
create function time_v1(at bigint) returns bigint
    language sql volatile parallel safe
    as $$ select coalesce(at, (extract(epoch from clock_timestamp()) * 1000000)::bigint) $$;
