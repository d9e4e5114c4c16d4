-- The views. Every migration makes them again, as they are here, after the tables have changed.
--
-- Views for people have singular names and stay stable while tables change: add new columns at the end.

-- Views for functions and for Python. Their columns are the fields of the values in `holdfast.core.model`, so that
-- `row_to_json` returns these values.

create view runs_read as
    select {{run_fields}}
    from runs;

create view types_read as
    select {{type_fields}}
    from types;

create view entries_read as
    select run_id, {{entry_fields}}
    from entries;

create view inbox_read as
    select run_id, {{arrival_fields}}
    from inbox;

create view waits_read as
    select run_id, place, {{wait_fields}}
    from waits;

-- Views for people, with singular names. Payloads are shown as `json`, because `jsonb` refuses some of them. Deleted
-- runs are not shown.

create view run as
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

comment on view run is 'Runs: durable executions, with their current states.';
comment on column run.id is 'Id of the run.';
comment on column run.type is 'Type of its workflow or task.';
comment on column run.state is
    'pending, running, suspended, paused, blocked, rolling_back, or its end: succeeded, failed, cancelled.';
comment on column run.priority is '0 (first) to 255 (last).';
comment on column run.key is 'Idempotency key of its start. At most one run has it.';
comment on column run.tags is 'Names and values for searches.';
comment on column run.payload is 'Arguments of its function, from the start or from its last continue_as_new.';
comment on column run.result is 'Return value, if it succeeded.';
comment on column run.error is 'Error because of which it failed, was cancelled, or is blocked.';
comment on column run.worker is 'Id of the worker that holds it. No other worker may write the run.';
comment on column run.token is 'Grows with each claim. Writes with an older token are refused.';
comment on column run.attempt is
    'Grows when the run is recovered or rewound, when its worker dies, and when it is tried again after a block.';
comment on column run.generation is 'Grows when the run continues as new.';
comment on column run.crashes is 'Number of workers in a row that died while they held it.';
comment on column run.parent_id is 'Id of the run that started it as a child, or that it was started under.';
comment on column run.created_at is 'Time when it was created.';
comment on column run.start_at is 'Earliest time for its start.';
comment on column run.ready_at is
    'Time from which a worker may claim it. For a held run, the end of the lease. Null if it waits without a deadline.';
comment on column run.first_claimed_at is 'Time of the first claim.';
comment on column run.suspended_at is 'Time since when it is suspended.';
comment on column run.updated_at is 'Time of the last change.';
comment on column run.finished_at is 'Time of its end.';

-- A simple view, so that `on conflict` works. The columns that a producer may set are plain columns and can be written.
-- The others are expressions and cannot. The trigger of `runs` checks inserted rows.
create view intent as
    select id, type, payload,
        key as idempotency_key,
        priority,
        ready_at as run_at,
        tags, parent_id,
        asked_max_run as max_run,
        asked_max_suspend as max_suspend,
        asked_retention as retention,
        asked_undelivered as undelivered,
        asked_max_attempts as max_attempts,
        asked_by as by,
        state collate "C" as state,
        json_or_null(result) as result,
        json_or_null(error) as error,
        instant(created_at) as created_at,
        instant(finished_at) as finished_at
    from runs;

comment on view intent is
    'Insert here to start a run: insert into intent (type, payload, idempotency_key) values (…) '
    'on conflict do nothing returning id.';
comment on column intent.id is 'Id of the run. Default: a new id.';
comment on column intent.type is 'Type of the workflow or task to run.';
comment on column intent.payload is 'A JSON object with its parameters by name.';
comment on column intent.idempotency_key is 'At most one run has it. A second insert with the same key conflicts.';
comment on column intent.priority is '0 (first) to 255 (last). Default: 100.';
comment on column intent.run_at is 'Earliest start. Default: now. After the insert: the time when the run is due next.';
comment on column intent.tags is 'A JSON object of names and values for searches.';
comment on column intent.parent_id is 'Id of a run to list this run under. Neither waits for the other.';
comment on column intent.max_run is 'Write only: a worker cancels the run after this time, counted from run_at.';
comment on column intent.max_suspend is 'Write only: one suspension of the run that takes longer cancels it.';
comment on column intent.retention is 'Write only: how long the run is kept after its end. Default: as its type says.';
comment on column intent.undelivered is
    'Write only: discard (default) or dead_letter, for messages that the run never received.';
comment on column intent.max_attempts is 'Write only: number of attempts of a task. Default: as its code says.';
comment on column intent.by is 'Write only: who asked for the run, for its audit. Default: the role that logged in.';
comment on column intent.state is 'Read only: its state, see run.state.';
comment on column intent.result is 'Read only: its return value.';
comment on column intent.error is 'Read only: the error because of which it failed or was cancelled.';
comment on column intent.created_at is 'Read only: time of the insert.';
comment on column intent.finished_at is 'Read only: time of its end.';

create view entry as
    select run_id, location, kind, state, position, attempts,
        json_or_null(result) as result,
        json_or_null(error) as error,
        ref, has_undo,
        instant(started_at) as started_at,
        instant(finished_at) as finished_at,
        instant(retry_at) as retry_at
    from entries;

comment on view entry is
    'Histories: the recorded operations of runs. A run that resumes reads their results and does not repeat them.';
comment on column entry.run_id is 'Id of the run whose history it belongs to.';
comment on column entry.location is 'Path of the operation inside the run.';
comment on column entry.kind is
    'step, tx, timer, message, event, child, send, emit, cancel, reply, loop, version, removed, rollback, undo, '
    'rounds or snapshot.';
comment on column entry.state is 'started, retrying, or settled: done, failed, timed_out.';
comment on column entry.position is 'Position in the order in which operations were settled. 0 if it is not settled.';
comment on column entry.attempts is 'Number of attempts.';
comment on column entry.result is 'Result of the operation.';
comment on column entry.error is 'Error of the operation, or of its last attempt.';
comment on column entry.ref is 'Id of the child or message, or number of the event.';
comment on column entry.has_undo is 'True if a rollback has to undo it.';
comment on column entry.started_at is 'Time of its start.';
comment on column entry.finished_at is 'Time when it was settled.';
comment on column entry.retry_at is 'Time of the next attempt.';

create view message as
    select run_id, number, name,
        ref as id,
        json_or_null(payload) as payload,
        instant(at) as sent_at
    from inbox
    where kind = 'message';

comment on view message is 'Messages that were sent to runs and are not received yet.';
comment on column message.run_id is 'Id of the run it was sent to.';
comment on column message.number is 'Position among all arrivals of the run.';
comment on column message.name is 'Name of the message.';
comment on column message.id is 'Id of the message. A second message with the same id is ignored.';
comment on column message.payload is 'Payload.';
comment on column message.sent_at is 'Time when it reached the inbox of the run.';

create view event as
    select number, topic, id,
        json_or_null(payload) as payload,
        state, holder, reached,
        instant(at) as emitted_at,
        instant(nullif(taken_at, 0)) as taken_at
    from events;

comment on view event is 'Published events that are still kept.';
comment on column event.number is 'Position in the order in which events were published.';
comment on column event.topic is 'Topic of the event.';
comment on column event.id is 'Id of the event. A second event with the same topic and id is ignored.';
comment on column event.payload is 'Payload.';
comment on column event.state is 'fanout: open. queue: pending, handed to one run, or taken by that run.';
comment on column event.holder is 'queue: id of the run that it was handed to.';
comment on column event.reached is 'Number of waiting runs that it reached when it was published.';
comment on column event.emitted_at is 'Time when it was published.';
comment on column event.taken_at is 'queue: time when the run took it.';

create view wait as
    select run_id, location, kind,
        json_or_null(names) as names,
        count,
        instant(since) as since,
        instant(deadline) as deadline
    from waits;

comment on view wait is 'Waits of runs.';
comment on column wait.run_id is 'Id of the run that waits.';
comment on column wait.location is 'Location of the operation that waits.';
comment on column wait.kind is 'time, retry, message, event, child, children or slot.';
comment on column wait.names is 'Names of messages (none: any), the topic, the id of the child, or the group.';
comment on column wait.count is 'For a group of children: the number that have to end.';
comment on column wait.since is 'Time since when it waits.';
comment on column wait.deadline is 'Time at which the wait ends.';

create view audit as
    select number, run_id, event,
        json_or_null(coalesce(data, '{}')) as data,
        instant(at) as at
    from audits;

comment on view audit is 'Audit of runs. Each fact is written in the same transaction as the change.';
comment on column audit.number is 'Position in the order of facts.';
comment on column audit.run_id is 'Id of the run.';
comment on column audit.event is 'Kind of the change: claimed, suspended, woken, succeeded, cancelled, …';
comment on column audit.data is 'Details of the change.';
comment on column audit.at is 'Time of the change.';

create view worker as
    select id, name, host, pid,
        json_or_null(types) as types,
        concurrency,
        instant(started_at) as started_at,
        instant(heartbeat_at) as heartbeat_at
    from workers;

comment on view worker is 'Workers that are running, or that died without a shutdown.';
comment on column worker.id is 'Id of the worker, as in run.worker.';
comment on column worker.name is 'Name of the worker, for people.';
comment on column worker.host is 'Machine that it runs on.';
comment on column worker.pid is 'Process id on that machine.';
comment on column worker.types is 'Types of runs that it claims.';
comment on column worker.concurrency is 'Maximum number of runs that it holds.';
comment on column worker.started_at is 'Time of its start.';
comment on column worker.heartbeat_at is 'Time of its last heartbeat.';

create view type as
    select name, runtime, description, is_enabled, concurrency,
        coalesce(json_of(per_key), '{}') as per_key,
        (rate::json ->> 'count')::bigint as rate_count,
        (rate::json ->> 'period')::bigint * interval '1 microsecond' as rate_period,
        retention * interval '1 microsecond' as retention,
        seen_by,
        instant(seen_at) as seen_at,
        coalesce(json_of(plan), '[]') as plan
    from types;

comment on view type is 'Types of runs, with their settings and limits.';
comment on column type.name is 'Name of the type, as in run.type.';
comment on column type.runtime is 'Language of the workers that offer the type: python, go, …';
comment on column type.description is 'Description, for people.';
comment on column type.is_enabled is 'True if its runs are claimed. If false, they wait until it is enabled again.';
comment on column type.concurrency is 'Maximum number of its runs that execute at once. Null: no limit.';
comment on column type.per_key is
    'Maximum number of its runs that execute at once with the same value of a tag, by name of the tag.';
comment on column type.rate_count is
    'Maximum number of its runs that begin within rate_period. Null: no limit.';
comment on column type.rate_period is 'Period of rate_count.';
comment on column type.retention is 'Time for which its runs are kept after their end. Null: the usual time.';
comment on column type.seen_by is 'Worker that last offered the type.';
comment on column type.seen_at is 'Time of that offer.';
comment on column type.plan is 'Names of the steps of a pipeline, in order. Empty for other types.';

create view slot as
    select name, run_id
    from slots;

comment on view slot is
    'Slots of limits, with the runs that have them. A run that needs a slot and has none waits: see wait, kind slot.';
comment on column slot.name is
    'The limit: type:NAME, type:NAME TAG=VALUE for runs with this tag, or rate:NAME for runs that may begin.';
comment on column slot.run_id is 'Id of the run that has the slot.';

create view schedule as
    select name, type,
        (body::json ->> 'payload')::json as payload,
        body::json ->> 'cron' as cron,
        (body::json ->> 'every')::bigint * interval '1 microsecond' as every,
        coalesce(body::json ->> 'zone', 'UTC') as zone,
        coalesce(body::json ->> 'catch_up', 'one') as catch_up,
        coalesce(body::json ->> 'overlap', 'allow') as overlap,
        coalesce((body::json ->> 'jitter')::bigint, 0) * interval '1 microsecond' as jitter,
        coalesce((body::json ->> 'priority')::smallint, 100) as priority,
        coalesce((body::json ->> 'tags')::jsonb, '{}') as tags,
        coalesce((body::json ->> 'is_declared')::boolean, false) as is_declared,
        coalesce((body::json ->> 'is_paused')::boolean, false) as is_paused,
        coalesce((body::json ->> 'skipped')::bigint, 0) as skipped,
        body::json ->> 'last_run_id' as last_run_id,
        instant((body::json ->> 'last_slot')::bigint) as last_slot,
        instant((body::json ->> 'last_skipped_slot')::bigint) as last_skipped_slot,
        instant((body::json ->> 'created_at')::bigint) as created_at,
        instant((body::json ->> 'updated_at')::bigint) as updated_at,
        instant(next_at) as next_at
    from schedules;

comment on view schedule is 'Schedules: rules that start runs over time.';
comment on column schedule.name is 'Name of the schedule.';
comment on column schedule.type is 'Type of the runs that it starts.';
comment on column schedule.payload is 'Payload of its runs.';
comment on column schedule.cron is 'Cron expression. Null if it has an interval, see every.';
comment on column schedule.every is 'Interval. Null if it has a cron expression.';
comment on column schedule.zone is 'Time zone of the cron expression.';
comment on column schedule.catch_up is 'Handling of slots that were missed: skip, one or all.';
comment on column schedule.overlap is 'Handling of a slot while an earlier run has not ended: allow or skip.';
comment on column schedule.jitter is 'Maximum delay of a run after its slot.';
comment on column schedule.priority is 'Priority of its runs: 0 (first) to 255 (last).';
comment on column schedule.tags is 'Tags of its runs, in addition to schedule and slot.';
comment on column schedule.is_declared is 'True if it is declared in the code of an application.';
comment on column schedule.is_paused is 'True if it does not fire until it is resumed.';
comment on column schedule.skipped is 'Number of slots that were skipped because an earlier run had not ended.';
comment on column schedule.last_run_id is 'Id of the last run that it started.';
comment on column schedule.last_slot is 'Last slot for which it started a run.';
comment on column schedule.last_skipped_slot is 'Last slot that was skipped because an earlier run had not ended.';
comment on column schedule.created_at is 'Time when it was first set.';
comment on column schedule.updated_at is 'Time when it last changed or fired.';
comment on column schedule.next_at is 'Time of the next firing. Null while it is paused.';
