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
