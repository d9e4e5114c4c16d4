-- Returns the verdicts on held runs: their new arrivals, and which of the runs are lost.
create function look_v1(holdings text, at bigint) returns text
    {{operation}}
    as $$
begin
    return json_build_object(
        'now', time_v1(at),
        'verdicts', (
            select coalesce(json_agg(
                case
                    when r.token = h.token and r.worker is not null then json_build_object(
                        'run_id', h.run_id,
                        'seen', r.arrivals,
                        'stop', r.stop,
                        'arrivals', case when r.arrivals <= h.seen then '[]'::json else newer_v1(r.id, h.seen) end
                    )
                    else json_build_object('run_id', h.run_id, 'is_lost', true, 'is_held', false)
                end
                order by h.place
            ), '[]')
            from (
                select
                    h.place,
                    h.value ->> 'run_id' as run_id,
                    (h.value ->> 'token')::bigint as token,
                    coalesce((h.value ->> 'seen')::bigint, 0) as seen
                from json_array_elements(holdings::json) with ordinality as h (value, place)
            ) as h
            left join runs as r on r.id = h.run_id
        )
    )::text;
end
$$;
