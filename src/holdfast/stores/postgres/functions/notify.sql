-- Tell workers to look at once. Otherwise they notice what was inserted when they look next. A notification is sent on
-- commit, together with what it is about.
create function notify(type text default null) returns void
    language sql volatile
    set search_path from current
    as $$ select pg_notify(current_schema(), json_build_array('', coalesce(type, ''))::text) $$;

comment on function notify is 'Have idle workers look for runs (of a type) at once, instead of when they look next.';
