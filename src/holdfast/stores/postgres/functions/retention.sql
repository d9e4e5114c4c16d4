-- Returns the retention of events of a topic.
create function retention_v1(of_topic text) returns bigint
    {{reader}}
    as $$
begin
    return coalesce((rule_v1(of_topic)).retention, {{event_retention}});
end
$$;
