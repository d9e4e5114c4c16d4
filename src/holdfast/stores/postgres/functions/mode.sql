-- How events of a topic are delivered.
create function mode_v1(of_topic text) returns text
    {{reader}}
    as $$
begin
    return coalesce((rule_v1(of_topic)).mode, 'fanout');
end
$$;
