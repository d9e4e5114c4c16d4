-- A run as whoever claims it would get it, in a list: `->` would refuse half a surrogate pair anywhere in it.
create function lease_v1(of_run text) returns text
    {{reader}}
    as $$
begin
    return leases_v1(array[of_run], true)::text;
end
$$;
