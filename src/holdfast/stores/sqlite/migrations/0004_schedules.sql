-- Schedules, each kept whole as JSON in `body`. The columns beside it are those by which they are looked up.

create table schedule (
    name text primary key not null,
    type text not null,
    next_at integer,
    body text not null
) without rowid;

-- What is due, the earliest first. Those that are paused are not in it.
create index schedule_due on schedule (next_at, name)
    where next_at is not null;
