"""Reads, for the engine and for people. Nothing here writes, and each answer shows one instant.

The views `…_read` return rows as the JSON of the values in `core.model`, which this module decodes. Lists of runs are
read page by page, the newest first, each from an index in its own order. Values of users are always bound.
"""

# ruff: noqa: S608 - statements are built from constants; values of users are always bound

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar, assert_never, cast

import msgspec
import psycopg

from holdfast.core import limits, questions
from holdfast.core.audit import KEPT, ROUTINE
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.model import Arrival, AuditFact, Backlog, DeadLetter, Entry, Run, TypeRule, WorkerRecord
from holdfast.core.questions import Details, ListDeadLetters, ListFlows, Query, SlotUse, replies_by_run
from holdfast.core.rules import LIMIT_LOCATION
from holdfast.core.states import RunState
from holdfast.core.topics import FAMILY
from holdfast.core.wire import reason_of
from holdfast.stores.postgres import claims, schedules, topics, unreadable
from holdfast.stores.postgres.scripts import RANK, Connection, Script, qualified
from holdfast.stores.postgres.unreadable import items, members

_IDS_AT_ONCE = 5_000
_STATES = frozenset(state.value for state in RunState)

_T = TypeVar("_T")
_A = TypeVar("_A")

DETAILS_FIELDS = """
        'run', row_to_json(run),
        'waits', coalesce(
            (
                select json_agg(wait order by wait.place)
                from {schema}.waits_read as wait
                where wait.run_id = run.id
            ),
            '[]'
        ),
        'values', coalesce(
            (
                select json_object_agg(value.name, value.value)
                from {schema}.run_values as value
                where value.run_id = run.id
            ),
            '{}'
        )
"""
"""The fields of the JSON of `Details`: a run of `runs_read as run` with its waits and values, by their primary keys."""

DETAILS = f"json_build_object({DETAILS_FIELDS})::text"

_GET = f"""
    select {DETAILS}
    from {{schema}}.runs_read as run
    where run.id = %s
      and run.deleted_at is null
"""  # by the primary key

_FIND = """
    select id
    from {schema}.runs
    where key = %s
"""  # runs_key

_HISTORY = """
    select row_to_json(entry)::text
    from {schema}.entries_read as entry
    where run_id = %s
    order by position = 0, position, location
"""  # by the primary key

_SETTLED = """
    select row_to_json(entry)::text
    from {schema}.entries_read as entry
    where run_id = %s
      and location = %s
      and position > 0
"""  # by the primary key

_AUDIT = """
    with fact as (
        select number, run_id, event, at, coalesce({schema}.json_of(data), '{}') as data
        from {schema}.audits
        where run_id = %(run_id)s
    ),
    facts as (
        select *
        from fact
        where event <> all(%(routine)s::text[])
        union all
        (
            select *
            from fact
            where event = any(%(routine)s::text[])
            order by number desc
            limit %(kept)s
        )
    )
    select row_to_json(facts)::text
    from facts
    order by number
"""  # audits_run

_ENDED = """
    select row_to_json(run)::text
    from {schema}.runs_read as run
    where id = any(array(select json_array_elements_text(%s::json)))
      and state in ('succeeded', 'failed', 'cancelled')
"""  # by the primary key

_FEW_ENDED = """
    select json_agg(run)::text
    from {schema}.runs_read as run
    where id = any(array(select json_array_elements_text(%s)))
      and state in ('succeeded', 'failed', 'cancelled')
"""  # by the primary key

_REPLIES = """
    select reply.run_id, reply.message_id, reply.payload
    from unnest(%s::text[], %s::text[]) as asked (run_id, message_id)
    join {schema}.replies as reply on reply.run_id = asked.run_id and reply.message_id = asked.message_id
"""  # by the primary key

_LETTERS = """
    select row_to_json(letters)::text
    from {schema}.letters
    where number > %(after)s
    order by number
    limit %(limit)s
"""  # by the primary key

_LETTERS_OF_TOPIC = _LETTERS.replace("where ", "where topic = %(topic)s and ")  # letters_topic
_LETTERS_OF_FAMILY = _LETTERS.replace("where ", "where starts_with(topic, %(topic)s) and ")  # by the primary key

_MESSAGES = """
    select row_to_json(arrival)::text
    from {schema}.inbox_read as arrival
    where run_id = %s
      and kind = 'message'
    order by number
"""  # by the primary key

_COUNTS = """
    select type, state, count(*)
    from {schema}.runs
    where deleted_at is null
    group by type, state
    order by type
"""  # reads every run

_WORKERS = """
    select row_to_json(worker)::text
    from (
        select id, name, host, pid, {schema}.json_of(types) as types, concurrency, started_at, heartbeat_at
        from {schema}.workers
    ) as worker
    order by id
"""  # all of them: there are few

_TYPES = """
    select row_to_json(types_read)::text
    from {schema}.types_read
    order by name
"""  # all of them: there are few

_SLOTS = """
    select use.name, sum(use.used)::bigint, sum(use.waiting)::bigint
    from (
        select name, count(*) as used, 0 as waiting
        from {schema}.slots
        group by name
        union all
        select topic, 0, count(*)
        from {schema}.waits
        where kind = 'slot' and location = %s
        group by topic
    ) as use
    group by use.name
    order by use.name
"""

_ORPHANS = """
    select id
    from {schema}.runs
    where worker is null
      and ready_at is null
      and state not in ('succeeded', 'failed', 'cancelled', 'blocked', 'paused')
      and not exists (select from {schema}.waits where waits.run_id = runs.id)
    order by created_at, id
    limit %s
"""  # reads every run

# Runs that no worker holds are in lanes, one per type, priority and rank. Like a claim, the query skips through them.
_BACKLOG = f"""
    with recursive lanes (type, priority, rank) as (
        (
            select first.type, first.priority, {RANK} as rank
            from {{schema}}.runs as first
            where first.worker is null
              and first.ready_at is not null
            order by first.type, first.priority, {RANK}
            limit 1
        )
        union all
        select next.type, next.priority, next.rank
        from lanes
        cross join lateral (
            select run.type, run.priority, {RANK} as rank
            from {{schema}}.runs as run
            where (run.type, run.priority, {RANK}) > (lanes.type, lanes.priority, lanes.rank)
              and run.worker is null
              and run.ready_at is not null
            order by run.type, run.priority, {RANK}
            limit 1
        ) as next
    ),
    due (type, count, since) as (
        select lanes.type, lane.count, lane.since
        from lanes
        cross join lateral (
            select count(*), min(run.ready_at) as since
            from {{schema}}.runs as run
            where run.type = lanes.type
              and run.priority = lanes.priority
              and {RANK} = lanes.rank
              and run.worker is null
              and run.ready_at <= (select {{schema}}.instant({{schema}}.time_v1(%(at)s)))
        ) as lane
        union all
        select run.type, count(*), min(run.ready_at)
        from {{schema}}.runs as run
        where run.worker is not null
          and run.ready_at <= (select {{schema}}.instant({{schema}}.time_v1(%(at)s)))
        group by run.type
    )
    select type, sum(count)::bigint, {{schema}}.micros(min(since))
    from due
    where count > 0
    group by type
    order by type
"""  # runs_queue, runs_held

_HELD = """
    select worker, count(*)
    from {schema}.runs
    where worker is not null
    group by worker
"""  # runs_held

_FLOW_FIELDS = ", ".join(field for field in FlowDefinition.__struct_fields__ if field not in ("source", "program"))

_FLOWS = f"""
    select row_to_json(flow)::text
    from (
        select {_FLOW_FIELDS}
        from {{schema}}.flows
        where (type, registered_at) > (%(type_after)s, %(after)s)
          and (%(type)s::text is null or type = %(type)s or starts_with(type, %(family)s))
          and (%(version)s::text is null or starts_with(version, %(version)s))
        order by type, registered_at
        limit %(limit)s
    ) as flow
"""  # by the primary key

_FLOWS_WITH_TEXTS = _FLOWS.replace(_FLOW_FIELDS, f"{_FLOW_FIELDS}, source, program")

_details = msgspec.json.Decoder(Details)
_run = msgspec.json.Decoder(Run)
_runs = msgspec.json.Decoder(list[Run])
_entry = msgspec.json.Decoder(Entry)
_arrival = msgspec.json.Decoder(Arrival)
_fact = msgspec.json.Decoder(AuditFact)
_letter = msgspec.json.Decoder(DeadLetter)
_worker = msgspec.json.Decoder(WorkerRecord)
_rule = msgspec.json.Decoder(TypeRule)
_flow = msgspec.json.Decoder(FlowDefinition)


def get(connection: Connection, schema: str, run_id: str | None, key: str | None) -> Details | None:
    if key is not None:
        holder = connection.execute(qualified(_FIND, schema), (key,)).fetchone()
        run_id = holder[0] if holder else None
    found = details(connection.execute(qualified(_GET, schema), (run_id,)))
    return found[0] if found else None


def details(found: psycopg.Cursor[Any]) -> list[Details]:
    """Decode the rows of a statement that selects `DETAILS`. Of an invalid run, the valid fields are returned."""
    return [_details_of(text) for (text,) in found]


def _details_of(text: str) -> Details:
    try:
        return _details.decode(text)
    except unreadable.FAILURES as error:
        run, why = unreadable.marked(members(text)["run"])
        return Details(run=run, unreadable=why or f"waits or values: {reason_of(error)}")


def _run_of(text: str) -> Run:
    try:
        return _run.decode(text)
    except unreadable.FAILURES:
        return unreadable.marked(text)[0]


def settled(connection: Connection, schema: str, run_id: str, location: str) -> Entry | None:
    """Return the settled entry at a location, or None."""
    row = connection.execute(qualified(_SETTLED, schema), (run_id, location)).fetchone()
    return _entry.decode(row[0]) if row is not None else None


def history(connection: Connection, schema: str, run_id: str) -> tuple[Entry, ...]:
    found = connection.execute(qualified(_HISTORY, schema), (run_id,)).fetchall()
    with unreadable.readable(f"the history of run {run_id}"):
        return tuple(_entry.decode(text) for (text,) in found)


def messages(connection: Connection, schema: str, run_id: str) -> list[Arrival]:
    """The messages that wait in a run's inbox."""
    found = connection.execute(qualified(_MESSAGES, schema), (run_id,)).fetchall()
    with unreadable.readable(f"the inbox of run {run_id}"):
        return [_arrival.decode(text) for (text,) in found]


def audit(connection: Connection, schema: str, run_id: str) -> tuple[AuditFact, ...]:
    """Return the audit facts of a run. Old routine facts that are not trimmed yet are left out."""
    values = {"run_id": run_id, "routine": list(ROUTINE), "kept": KEPT}
    return tuple(_fact.decode(text) for (text,) in connection.execute(qualified(_AUDIT, schema), values))


def few_ends(schema: str, run_ids: Sequence[str]) -> Script[list[Run]]:
    """Return those of a few runs that have ended."""
    text: str | None = yield qualified(_FEW_ENDED, schema), (_text_of(run_ids),)
    found = {run.id: run for run in _ended_in(text)} if text is not None else {}
    return [found[run_id] for run_id in run_ids if run_id in found]


def ends(connection: Connection, schema: str, run_ids: Sequence[str]) -> list[Run]:
    """Return those of any number of runs that have ended."""
    found: dict[str, Run] = {}
    for some in _in_parts(run_ids):
        texts = connection.execute(qualified(_ENDED, schema), (_text_of(some),))
        runs = (_run_of(text) for (text,) in texts)
        found |= {run.id: run for run in runs}
    return [found[run_id] for run_id in run_ids if run_id in found]


def _ended_in(text: str) -> list[Run]:
    try:
        return _runs.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return [_run_of(one) for one in items(text)]


def replies(connection: Connection, schema: str, asked: Sequence[tuple[str, str]]) -> dict[str, dict[str, str]]:
    found = (
        connection.execute(qualified(_REPLIES, schema), ([one[0] for one in some], [one[1] for one in some]))
        for some in _in_parts(asked)
    )
    return replies_by_run(chain.from_iterable(found))


def dead_letters(connection: Connection, schema: str, query: ListDeadLetters) -> list[DeadLetter]:
    values = {"topic": query.topic, "after": query.after, "limit": query.limit}
    if query.topic is None:
        statement = _LETTERS
    elif query.topic.endswith(FAMILY):
        statement, values["topic"] = _LETTERS_OF_FAMILY, query.topic.removesuffix(FAMILY)
    else:
        statement = _LETTERS_OF_TOPIC
    found = connection.execute(qualified(statement, schema), values)
    return [_letter.decode(text) for (text,) in found]


def counts(connection: Connection, schema: str) -> dict[str, dict[RunState, int]]:
    counted: dict[str, dict[RunState, int]] = {}
    for type, state, count in connection.execute(qualified(_COUNTS, schema)):
        if state in _STATES:  # the column may hold an unknown state that was written by hand
            counted.setdefault(type, {})[RunState(state)] = count
    return counted


def workers(connection: Connection, schema: str) -> list[WorkerRecord]:
    return [_worker.decode(text) for (text,) in connection.execute(qualified(_WORKERS, schema))]


def types(connection: Connection, schema: str) -> list[TypeRule]:
    return [_rule.decode(text) for (text,) in connection.execute(qualified(_TYPES, schema))]


def slots(connection: Connection, schema: str, type: str | None) -> list[SlotUse]:
    found = connection.execute(qualified(_SLOTS, schema), (LIMIT_LOCATION,))
    uses = (SlotUse(name=name, used=used, waiting=waiting) for name, used, waiting in found)
    return [use for use in uses if type is None or limits.is_of(use.name, type)]


def orphans(connection: Connection, schema: str, limit: int) -> list[str]:
    return [run_id for (run_id,) in connection.execute(qualified(_ORPHANS, schema), (limit,))]


def backlog(connection: Connection, schema: str, at: Micros | None) -> list[Backlog]:
    """Count the runs that can be claimed now, by type. Without a time, the server's clock counts."""
    found = connection.execute(qualified(_BACKLOG, schema), {"at": at})
    return [Backlog(type=type, count=count, since=since) for type, count, since in found]


def held(connection: Connection, schema: str) -> dict[str, int]:
    """Return the number of runs that each worker holds."""
    return dict(connection.execute(qualified(_HELD, schema)).fetchall())


def list_flows(connection: Connection, schema: str, query: ListFlows) -> list[FlowDefinition]:
    is_family = query.type is not None and query.type.endswith(".*")
    values = {
        "type_after": query.after[0],
        "after": query.after[1],
        "type": query.type,
        "family": (query.type or "")[:-1] if is_family else None,
        "version": query.version,
        "limit": query.limit,
    }
    statement = _FLOWS_WITH_TEXTS if query.with_texts else _FLOWS
    return [_flow.decode(text) for (text,) in connection.execute(qualified(statement, schema), values)]


def _text_of(run_ids: Sequence[str]) -> str:
    """Return ids as JSON, because the driver is slow with an array of thousands."""
    return msgspec.json.encode(run_ids).decode()


def _in_parts(values: Sequence[_T]) -> Iterator[list[_T]]:
    for start in range(0, len(values), _IDS_AT_ONCE):
        yield list(values[start : start + _IDS_AT_ONCE])


# Lists of runs

# States that few runs are in, each with the condition of a partial index: `runs_rare`, or `runs_held` for running runs.
# Postgres uses such an index only if the statement itself implies the condition, so the states are part of the text.
_RARE = (RunState.FAILED, RunState.CANCELLED, RunState.BLOCKED, RunState.PAUSED, RunState.ROLLING_BACK)
_FEW = {state: f"run.state = '{state.value}'" for state in _RARE}
_FEW[RunState.RUNNING] = "run.state = 'running' and run.worker is not null"

_LAST_CHARACTER = "\U0010ffff"

_OF_FAMILY = "run.type >= %(family)s and run.type < %(family_end)s"


def list_runs(connection: Connection, schema: str, query: Query) -> list[Details]:
    """Return one page of the runs that match a query."""
    text, values = list_statement(query)
    # Not prepared: the best plan depends on the values, above all on the limit.
    return details(connection.execute(qualified(text, schema), values, prepare=False))


def list_statement(query: Query) -> tuple[str, dict[str, object]]:
    """Return the statement for a list, and its values."""
    types, listed = _source(query)
    text = f"""
        with recursive {types} page as (
            select listed.created_at, listed.id
            from {listed}
            order by listed.created_at desc, listed.id desc
            limit %(limit)s
        )
        select {DETAILS}
        from page
        join {{schema}}.runs_read as run on run.id = page.id
        order by page.created_at desc, page.id desc
    """
    return text, _values(query)


def _source(query: Query) -> tuple[str, str]:
    """Return the clause that lists the types (empty if not needed), and the source of the runs."""
    conditions = list(_conditions(query))
    if query.tags or query.key is not None or query.parent_id is not None or query.id_prefix is not None:
        return "", f"({_newest(conditions)}) as listed"
    if query.is_deleted:
        return "", f"({_newest(conditions)}) as listed"
    if query.states and query.states.issubset(_FEW):
        each = [f"({_newest([_FEW[state], *conditions])})" for state in sorted(query.states)]
        return "", f"({' union all '.join(each)}) as listed"
    if query.type is not None and not query.type.endswith(".*"):
        return "", f"({_newest(conditions)}) as listed"
    of_type = _newest(["run.type = types.type", *conditions])
    return f"{_all_types(query)},", f"types cross join lateral ({of_type}) as listed"


def _newest(conditions: Sequence[str]) -> str:
    """Return the query for the newest runs, in order: from `runs_listed` for one type, `runs_rare` for one state."""
    return f"""
        select run.created_at, run.id
        from {{schema}}.runs as run
        where {" and ".join(conditions)}
        order by run.created_at desc, run.id desc
        limit %(limit)s
    """


def _all_types(query: Query) -> str:
    """Return the clause for all types, or those of a family. It skips from type to type in `runs_listed`.

    An index of all runs by creation time would cost every start more than it saves here.
    """
    family = "true" if query.type is None else _OF_FAMILY
    return f"""
        types as (
            (
                select run.type
                from {{schema}}.runs as run
                where {family}
                order by run.type
                limit 1
            )
            union all
            select (
                select run.type
                from {{schema}}.runs as run
                where run.type > types.type
                  and {family}
                order by run.type
                limit 1
            )
            from types
            where types.type is not null
        )
    """


def _conditions(query: Query) -> Iterator[str]:
    """Yield the conditions of a query, in the order of the fields of `Query`."""
    if query.states:
        yield "run.state = any(%(states)s::text[])"
    if query.type is not None:
        yield _OF_FAMILY if query.type.endswith(".*") else "run.type = %(type)s"
    if query.key is not None:
        yield "run.key = %(key)s"
    if query.tags:
        yield "run.tags @> %(tags)s::jsonb"
    if query.parent_id is not None:
        yield "run.parent_id = %(parent_id)s"
    if query.id_prefix is not None:
        yield "run.id >= %(id_prefix)s and run.id < %(id_end)s"
    if query.created_from is not None:
        yield "run.created_at >= %(created_from)s"
    if query.created_until is not None:
        yield "run.created_at < %(created_until)s"
    yield f"run.deleted_at is {'not ' if query.is_deleted else ''}null"
    if query.before is not None:
        yield "(run.created_at, run.id) < (%(before_created_at)s, %(before_id)s)"


def _values(query: Query) -> dict[str, object]:
    type = query.type or ""
    before = query.before or (0, "")
    return {
        "states": sorted(query.states),
        "type": type,
        "family": type[:-1],
        "family_end": type[:-2] + "/",  # the character after the dot
        "key": query.key,
        "tags": msgspec.json.encode(query.tags).decode(),
        "parent_id": query.parent_id,
        "id_prefix": query.id_prefix,
        "id_end": f"{query.id_prefix}{_LAST_CHARACTER}",
        "created_from": query.created_from,
        "created_until": query.created_until,
        "before_created_at": before[0],
        "before_id": before[1],
        "limit": query.limit,
    }


# Answers to the questions of the port


def answer_few_ends(schema: str, question: questions.Awaited[_A]) -> Script[_A]:
    """Answer `EndsOf` about a few runs, in one round trip."""
    ends = yield from few_ends(schema, cast("questions.EndsOf", question).run_ids)
    return cast("_A", ends)


def answer(connection: Connection, schema: str, question: questions.Question[_A], at: Micros | None) -> _A:
    return cast("_A", _answer(connection, schema, cast("questions.AnyQuestion", question), at))


def _answer(connection: Connection, schema: str, question: questions.AnyQuestion, at: Micros | None) -> object:  # noqa: C901, PLR0912 - one line for each question
    match question:
        # What processes wait for comes first: it is asked often.
        case questions.EndsOf():
            return ends(connection, schema, question.run_ids)
        case questions.VerdictsOn():
            return claims.check(connection, schema, question.holdings, at)
        case questions.RepliesTo():
            return replies(connection, schema, question.messages)
        case questions.CountRuns():
            return counts(connection, schema)
        case questions.CountReady():
            return backlog(connection, schema, at)
        case questions.CountLeases():
            return held(connection, schema)
        case questions.CountSlots():
            return slots(connection, schema, question.type)
        case questions.FindOrphans():
            return orphans(connection, schema, question.limit)
        case questions.ListTopics():
            return topics.list_topics(connection, schema)
        case questions.ListTypes():
            return types(connection, schema)
        case questions.ListMessages():
            return messages(connection, schema, question.run_id)
        case questions.ListDeadLetters():
            return dead_letters(connection, schema, question)
        case questions.ListSchedules():
            return schedules.list_schedules(connection, schema, question)
        case questions.ListDueSchedules():
            return schedules.due(connection, schema, question.limit, question.after, at)
        case questions.ListFlows():
            return list_flows(connection, schema, question)
        case _:
            assert_never(question)
