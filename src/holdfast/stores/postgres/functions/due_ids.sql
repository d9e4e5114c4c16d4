-- Returns the ids of the due runs that a claim within limits needs, so that Python finds those it cannot decode.
create function due_ids_v1(types text, wanted integer, at bigint) returns text
    {{reader}}
    as $$
declare
    wanted_types constant text[] := array(select json_array_elements_text(types::json));
begin
    return (
        select coalesce(json_agg(due.id), '[]')::text
        from due_v1(wanted_types, instant(time_v1(at)), wanted, 1) as due
    );
end
$$;
