-- Returns the delivery mode of a topic.
create function mode_v1(of_topic text) returns text
    {{reader}}
    as $$
begin
    return coalesce((rule_v1(of_topic)).mode, 'fanout');
end
$$;
