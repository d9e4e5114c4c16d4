-- A run in the form that a claim gives it, in a list. `->` on the JSON would fail if there were half a surrogate pair
-- anywhere in it.
create function lease_of_run_v1(of_run text) returns text
    {{reader}}
    as $$
begin
    return leases_of_runs_v1(array[of_run], true)::text;
end
$$;
