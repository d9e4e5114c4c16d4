-- A column of JSON as JSON. A text that is none, which only a hand can have written, becomes a string: whoever decodes
-- the row sees that something else stands there, and of all other rows nothing is lost.
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
