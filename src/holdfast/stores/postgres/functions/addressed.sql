-- Returns the messages to locked runs, with the ids of these runs. A message names its run by id or by key.
create function addressed_v1(messages json, locked text[]) returns table (run_id text, id text)
    {{reader}}
    as $$
begin
    return query
    select m.run_id, m.id
    from (
        select coalesce(m.run_id, (select r.id from runs as r where r.key = m.key)) as run_id, m.id
        from json_to_recordset(messages) as m (run_id text, key text, id text)
    ) as m
    where m.run_id = any(locked);
end
$$;
