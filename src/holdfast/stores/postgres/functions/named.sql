-- A member of a JSON object that is put together as text. It is stable like its parts: else Postgres would not replace
-- a call by its text, and would plan it each time.
create function named_v1(name text, value json) returns text
    language sql stable
    as $$ select '"' || name || '":' || value $$;
