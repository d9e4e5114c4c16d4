-- A JSON column as JSON. A text that is no JSON, which only a person can have written, becomes a string. So whoever
-- decodes the row notices it, and all other rows can be read.
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
