-- Has workers look now, who would otherwise see what was inserted when they look next. A notification counts when it
-- is committed, with what it tells of.
create function notify(type text default null) returns void
    language sql volatile
    set search_path from current
    as $$ select pg_notify(current_schema(), json_build_array('', coalesce(type, ''))::text) $$;

comment on function notify is 'Have idle workers look for runs (of a type) at once, instead of when they look next.';
