-- Returns a time in microseconds as a `timestamptz`. `micros` says why the function is written this way.
create function instant(micros bigint) returns timestamptz
    language sql stable strict parallel safe
    as $$ select timestamptz 'epoch' + int8larger(micros, -210866716800000000) * interval '1 microsecond' $$;
