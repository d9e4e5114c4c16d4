-- What the full vocabulary needs: rollback, pausing, limits of a run, generations, groups of children, queues,
-- replies and dead letters. Every new column has a default, so that what older code writes stays valid.

alter table run add column rollback text;
alter table run add column is_pausing integer not null default 0;
alter table run add column suspended_at integer;

alter table intent add column options text;
alter table intent add column continued text;

alter table entry add column since integer not null default 0;
alter table entry add column has_undo integer not null default 0;

-- What there is to undo, should the run be cancelled.
create index entry_undo on entry (run_id)
    where has_undo = 1;

alter table inbox add column family text;
alter table inbox add column is_exclusive integer not null default 0;

alter table wait add column count integer not null default 0;

-- `state`: `open` for all, `pending` in a queue, `handed` to its holder, `taken` for good. `expires_at` is unknown until
-- the pruner has looked at the event, and again when the rules of its topic have changed.
alter table event add column state text not null default 'open';
alter table event add column holder text;
alter table event add column expires_at integer;

drop index event_age;

create index event_expiry on event (expires_at);

create index event_pending on event (topic, number)
    where state = 'pending';

-- Who waits longest for an event.
create index wait_turn on wait (topic, since, run_id)
    where kind = 'event';

-- Events of queues that a run has in its inbox.
create index inbox_exclusive on inbox (run_id)
    where is_exclusive = 1;

-- Forgotten by age, whichever run they are of.
drop index receipt_age;

create index receipt_age on receipt (at);

create table topic (
    name text primary key not null,
    mode text not null,
    retention integer not null,
    max_pending integer not null
) without rowid;

create table letter (
    number integer primary key autoincrement,
    id text not null,
    topic text,
    run_id text,
    name text,
    payload text not null,
    at integer not null,
    reason text not null
);

create index letter_topic on letter (topic, number);

create table reply (
    run_id text not null,
    message_id text not null,
    payload text not null,
    at integer not null,
    primary key (run_id, message_id)
) without rowid;

create index reply_age on reply (at);

-- A message or event that was received is recorded with its instant and its id, as one of perhaps several.
update entry
set result = '[' || substr(result, 1, length(result) - 1) || ',' || finished_at || ',' || ifnull(json_quote(ref), 'null') || ']]'
where kind in ('message', 'event')
  and state = 'done'
  and result is not null;
