-- What daily operations need: types with their rules and limits, slots, and runs that are removed some time after
-- their end. The functions that these concern follow in the next files, each in place of an older one.

alter table runs
    add column slots text,
    add column retention bigint,
    add column deleted_at bigint,
    add column purge_at bigint;

-- What goes when its type says so, and what goes at an instant of its own.
create index runs_ended on runs (type, finished_at, id)
    where finished_at is not null and purge_at is null;

create index runs_purge on runs (purge_at, id)
    where purge_at is not null;

-- Those that people no longer see, newest first.
create index runs_deleted on runs (created_at, id)
    where deleted_at is not null;

-- `rate_window` is what the rate has to remember.
create table types (
    name text collate "C" primary key,
    runtime text not null default '',
    description text not null default '',
    is_enabled boolean not null default true,
    concurrency bigint,
    per_key text,
    rate text,
    rate_window text,
    retention bigint,
    seen_by text not null default '',
    seen_at bigint,
    is_limited boolean generated always as (concurrency is not null or per_key is not null or rate is not null) stored
);

-- Who has a slot of which limit.
create table slots (
    name text collate "C" not null,
    run_id text collate "C" not null,
    primary key (name, run_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- Who waits for a slot, in the order in which they get one: by priority and rank, which `after` has, and how long they
-- wait.
create index waits_slot on waits (topic, after, since, run_id)
    where kind = 'slot';

-- As the values of `holdfast.core.model` that they are, like the views in `0001_first.sql`.
create or replace view runs_read as
    select id, type, state, payload, created_at,
        coalesce(start_at, micros(ready_at), created_at) as start_at,
        updated_at, priority,
        micros(ready_at) as ready_at,
        key,
        coalesce(tags::json, '{}') as tags,
        worker, token, claim_id, first_claimed_at, finished_at, python, attempt, generation, crashes, arrivals,
        parent_id, parent_location, on_close, result,
        json_of(error) as error,
        rollback, is_pausing, suspended_at, continued,
        coalesce(json_of(options), '{}') as options,
        coalesce(json_of(slots), '[]') as slots,
        retention, deleted_at, purge_at
    from runs;

create view types_read as
    select name, runtime, description, is_enabled, concurrency,
        coalesce(json_of(per_key), '{}') as per_key,
        json_of(rate) as rate,
        retention, seen_by, seen_at
    from types;

create view type as
    select name, runtime, description, is_enabled, concurrency,
        coalesce(json_of(per_key), '{}') as per_key,
        (rate::json ->> 'count')::bigint as rate_count,
        (rate::json ->> 'period')::bigint * interval '1 microsecond' as rate_period,
        retention * interval '1 microsecond' as retention,
        seen_by,
        instant(seen_at) as seen_at
    from types;

comment on view type is 'Types of runs: what workers and people have said of them.';
comment on column type.name is 'Its name, as in run.type.';
comment on column type.runtime is 'What the workers are made of that offer to do its runs: python, go, …';
comment on column type.description is 'What it is for.';
comment on column type.is_enabled is 'Whether its runs are claimed; if not, they wait until it is switched on again.';
comment on column type.concurrency is 'How many of its runs are worked on at once at most; null: as many as there are.';
comment on column type.per_key is
    'Names of tags: of runs with the same value of one, so many are worked on at once at most.';
comment on column type.rate_count is 'How many of its runs begin within rate_period at most; null: as many as there are.';
comment on column type.rate_period is 'In how much time.';
comment on column type.retention is 'How long its runs are kept after their end; null: as long as others.';
comment on column type.seen_by is 'The worker that last offered to do its runs.';
comment on column type.seen_at is 'When it did.';

create view slot as
    select name, run_id
    from slots;

comment on view slot is 'Who has a slot of which limit. Whoever has none, and needs one, waits: see wait, of kind slot.';
comment on column slot.name is
    'The limit: type:NAME, type:NAME TAG=VALUE for the runs with this tag, rate:NAME for those that may begin.';
comment on column slot.run_id is 'The run that has it.';

comment on table types is 'holdfast''s own; read the view type.';
comment on table slots is 'holdfast''s own; read the view slot.';

-- What people see and use of runs, without what was deleted. A database that was made before has older ones, which these
-- replace; `0005_people.sql` says what all of them have in common.

create or replace view run as
    select id, type, state, priority, key,
        coalesce(tags, '{}') as tags,
        json_or_null(coalesce(continued, payload)) as payload,
        json_or_null(result) as result,
        json_or_null(error) as error,
        worker, token, attempt, generation, crashes, parent_id,
        instant(created_at) as created_at,
        coalesce(instant(start_at), ready_at, instant(created_at)) as start_at,
        ready_at,
        instant(first_claimed_at) as first_claimed_at,
        instant(suspended_at) as suspended_at,
        instant(updated_at) as updated_at,
        instant(finished_at) as finished_at
    from runs
    where deleted_at is null;

comment on view run is 'Runs: durable executions, as they stand.';
comment on column run.id is 'Its id.';
comment on column run.type is 'Which workflow or task it is a run of.';
comment on column run.state is
    'pending, running, suspended, paused, blocked, rolling_back, or its end: succeeded, failed, cancelled.';
comment on column run.priority is '0 (first) to 255 (last).';
comment on column run.key is 'The idempotency key it was started with: at most one run has it.';
comment on column run.tags is 'Names and values to find it by.';
comment on column run.payload is
    'What its code is called with: what it was started with, or its last generation handed on.';
comment on column run.result is 'What it returned, if it succeeded.';
comment on column run.error is 'Why it failed, was cancelled, or is blocked.';
comment on column run.worker is 'The id of the worker that holds it: nobody else may write it.';
comment on column run.token is 'Grows with each claim; what is written with an older one is refused.';
comment on column run.attempt is 'Grows when it is recovered or rewound.';
comment on column run.generation is 'Grows when it continues as new.';
comment on column run.crashes is 'How many workers died in a row while they held it.';
comment on column run.parent_id is 'The run that started it as its child.';
comment on column run.created_at is 'When it was started.';
comment on column run.start_at is 'When it was to begin at the earliest.';
comment on column run.ready_at is
    'From when it may be claimed; of a held one, when its lease ends; null if it only waits for something else.';
comment on column run.first_claimed_at is 'When a worker first took it.';
comment on column run.suspended_at is 'Since when it waits.';
comment on column run.updated_at is 'When it changed last.';
comment on column run.finished_at is 'When it ended.';

-- Plain, so that `on conflict` works. Only what a producer may say is a column that can be written: the others are
-- expressions. The trigger of `runs` in `0005_people.sql` checks what is inserted.
create or replace view intent as
    select id, type, payload,
        key as idempotency_key,
        priority,
        ready_at as run_at,
        tags,
        state collate "C" as state,
        json_or_null(result) as result,
        json_or_null(error) as error,
        instant(created_at) as created_at,
        instant(finished_at) as finished_at
    from runs;

comment on view intent is
    'Insert here to start a run: insert into intent (type, payload, idempotency_key) values (…) '
    'on conflict do nothing returning id.';
comment on column intent.id is 'The id of the run; made if none is given.';
comment on column intent.type is 'The type of the workflow or task to run.';
comment on column intent.payload is 'A JSON object of its parameters by name.';
comment on column intent.idempotency_key is 'At most one run has it: a second insert conflicts.';
comment on column intent.priority is '0 (first) to 255 (last); 100 if not given.';
comment on column intent.run_at is 'From when it may begin: at once if not given. Later: when it is due next.';
comment on column intent.tags is 'A JSON object of names and values to find it by.';
comment on column intent.state is 'Read only: how it stands; see run.state.';
comment on column intent.result is 'Read only: what it returned.';
comment on column intent.error is 'Read only: why it failed or was cancelled.';
comment on column intent.created_at is 'Read only: when it was inserted.';
comment on column intent.finished_at is 'Read only: when it ended.';

-- A run that nobody has ever claimed ends here: it has done nothing, nothing has reached it, and it neither has a slot
-- nor waits for one. What becomes of any other is for a worker to decide, by the rules.
create or replace function cancel(run_id text, reason text default 'cancelled with SQL') returns boolean
    language plpgsql security definer
    set search_path from current
    as $$
declare
    request constant text := new_id();
    now constant bigint := micros(clock_timestamp());
    why constant text := coalesce(reason, '');
    current record;
begin
    perform check_payload_v1('reason', to_json(why)::text, false);
    -- Locked first: only a later statement sees what whoever had it before has written of its waits.
    perform from runs as r where r.id = cancel.run_id for no key update;
    update runs as r
    set state = 'cancelled',
        token = 1,
        start_at = coalesce(r.start_at, micros(r.ready_at)),
        ready_at = null,
        claim_id = null,
        crashes = 0,
        error = json_build_object('type', 'Cancelled', 'message', why)::text,
        updated_at = now,
        finished_at = now,
        purge_at = now + r.retention
    where r.id = cancel.run_id
      and r.state = 'pending'
      and r.token = 0
      and r.arrivals = 0
      and r.parent_id is null
      and r.slots is null
      and not exists (select from waits as w where w.run_id = r.id)
    returning r.id, r.type, r.state
    into current;
    if found then
        insert into audits (run_id, event, at, data)
        values (current.id, 'cancelled', now, json_build_object('reason', why, 'by', 'sql:' || session_user, 'request', request)::text);
        perform notify();
        return true;
    end if;
    select r.id, r.type, r.state
    from runs as r
    where r.id = cancel.run_id
      and r.deleted_at is null
    into current;
    if not found then
        raise exception 'there is no run %', coalesce(quote_literal(cancel.run_id), 'null')
            using errcode = 'no_data_found';
    end if;
    if current.state in ('succeeded', 'failed', 'cancelled') then
        return false;
    end if;
    insert into requests (body)
    values (json_build_object(
        'kind', 'cancel',
        'run_id', current.id,
        'request', json_build_object('id', request, 'reason', why)
    )::text);
    perform notify(current.type);
    return true;
end
$$;

comment on function cancel is
    'End a run as cancelled, after it has undone what it did: at once if nobody has claimed it yet, else by the next '
    'worker. False if it had ended already.';

create or replace function send(run_id text, name text, payload json default 'null', id text default new_id()) returns text
    language plpgsql security definer
    set search_path from current
    as $$
declare
    current record;
begin
    perform check_name_v1('name', send.name);
    perform check_text_v1('id', send.id);
    perform check_payload_v1('payload', send.payload::text, false);
    select r.id, r.type, r.state
    from runs as r
    where r.id = send.run_id
      and r.deleted_at is null
    into current;
    if not found then
        raise exception 'there is no run %', coalesce(quote_literal(send.run_id), 'null')
            using errcode = 'no_data_found';
    end if;
    if current.state in ('succeeded', 'failed', 'cancelled') then
        raise exception 'run % has ended (%) and takes no more messages', quote_literal(current.id), current.state
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    insert into requests (body)
    values (json_build_object(
        'kind', 'send',
        'message', json_build_object(
            'id', send.id,
            'name', send.name,
            'payload', coalesce(send.payload::text, 'null'),
            'run_id', current.id
        )
    )::text);
    perform notify(current.type);
    return send.id;
end
$$;

comment on function send is
    'Send a message to a run that has not ended; the next worker delivers it. Gives back its id: sending it again '
    'under the same one is harmless.';

revoke execute on function cancel, send from public;
