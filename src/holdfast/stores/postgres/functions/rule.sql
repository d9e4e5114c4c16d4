-- Returns the rule for a topic: its own, or the rule of the closest family that covers it.
create function rule_v1(of_topic text) returns topics
    {{reader}}
    as $$
declare
    rule topics;
begin
    select t.*
    into rule
    from topics as t
    where t.name = of_topic
        or right(t.name, 1) = '*' and starts_with(of_topic, left(t.name, -1))
    order by t.name = of_topic desc, length(t.name) desc
    limit 1;
    return rule;
end
$$;
