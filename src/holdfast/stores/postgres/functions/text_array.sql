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
