-- Returns the time of an operation: the given one, or the server's. It uses nothing of this schema, so that Postgres
-- can inline it.
create function time_v1(at bigint) returns bigint
    language sql volatile parallel safe
    as $$ select coalesce(at, (extract(epoch from clock_timestamp()) * 1000000)::bigint) $$;
