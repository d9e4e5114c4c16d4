-- Returns a member of a JSON object as text, for objects that are built as text. The function is stable like its parts.
-- Otherwise Postgres would not inline it, and would plan it at each call.
create function named_v1(name text, value json) returns text
    language sql stable
    as $$ select '"' || name || '":' || value $$;
