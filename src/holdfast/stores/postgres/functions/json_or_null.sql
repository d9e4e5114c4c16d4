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
