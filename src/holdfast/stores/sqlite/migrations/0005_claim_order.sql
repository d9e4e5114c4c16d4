-- The claim order: runs that have begun, then children, then new starts. `rank` is `claim_order.rank_of` in the words of SQL.
alter table run add column rank integer
    generated always as (case when token > 0 then 0 when parent_id is not null then 1 else 2 end) virtual;

-- The queue: one lane per type, priority and rank, over runs nobody holds. Runs that wait or have ended are not in it.
drop index run_queue;

create index run_queue on run (type, priority, rank, ready_at, id)
    where worker is null and ready_at is not null;

-- Held runs by holder: expired leases of all types in one seek, and what a dead worker left.
drop index run_held;

create index run_held on run (worker, ready_at, type)
    where worker is not null;

-- Whoever waits for a slot of a limit stands in claim order, too: `limits.level_of`.
update wait
set after = after * 3 + (select rank from run where run.id = wait.run_id)
where kind = 'slot'
  and location = '~limit';
