-- Make idle workers look at once. Without it they find inserted runs at their next poll. Postgres sends the
-- notification when the transaction commits, so the workers then see its rows.
create function notify(type text default null) returns void
    language sql volatile
    set search_path from current
    as $$ select pg_notify(current_schema(), json_build_array('', coalesce(type, ''))::text) $$;

comment on function notify is 'Make idle workers look for runs (of a type) at once, and not only at their next poll.';
