-- Returns a run as a claim returns it, in a list. It is not taken out of the list, because `->` fails if half a
-- surrogate pair is anywhere in the JSON.
create function lease_of_run_v1(of_run text) returns text
    {{reader}}
    as $$
begin
    return leases_of_runs_v1(array[of_run], true)::text;
end
$$;
