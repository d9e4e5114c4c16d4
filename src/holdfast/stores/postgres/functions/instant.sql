-- A time in microseconds as a `timestamptz`. See `micros` for the form it has.
create function instant(micros bigint) returns timestamptz
    language sql stable strict parallel safe
    as $$ select timestamptz 'epoch' + int8larger(micros, -210866716800000000) * interval '1 microsecond' $$;
