-- Returns a time-ordered UUID (version 7), like those that Python makes.
create function new_id() returns text
    language sql volatile parallel safe
    as $$
        select substr(time.hex, 1, 8) || '-' || substr(time.hex, 9) || '-7' || substr(noise.hex, 14, 3)
            || '-' || substr(noise.hex, 17, 4) || '-' || substr(noise.hex, 21)
        from (select lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') as hex) as time,
            (select replace(gen_random_uuid()::text, '-', '') as hex) as noise
    $$;
