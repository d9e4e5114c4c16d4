-- A member of an object that is put together piece by piece. Stable like what it is made of, or it would not be put in
-- the place of a call, and be planned at each.
create function named_v1(name text, value json) returns text
    language sql stable
    as $$ select '"' || name || '":' || value $$;
