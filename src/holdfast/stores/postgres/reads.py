"""Reads of runs, for the engine and for people. Nothing here writes, and each answer shows one instant.

The views `…_read` return rows as the JSON of the values in `core.model`, which this module decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec
import psycopg

from holdfast.core import limits
from holdfast.core.audit import KEPT, ROUTINE
from holdfast.core.model import Arrival, AuditFact, DeadLetter, Entry, Run, TypeRule, WorkerRecord
from holdfast.core.questions import Details, ListDeadLetters, SlotUse, replies_by_run
from holdfast.core.rules import LIMIT_LOCATION
from holdfast.core.states import RunState
from holdfast.core.topics import FAMILY
from holdfast.core.unreadable import reason_of
from holdfast.stores.postgres import unreadable
from holdfast.stores.postgres.json_parts import items, members
from holdfast.stores.postgres.scripts import Script
from holdfast.stores.postgres.sql import qualified

_IDS_AT_ONCE = 5_000
_STATES = frozenset(state.value for state in RunState)

_T = TypeVar("_T")

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
"""  # noqa: S608 - built from constants; by the primary key

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
    told as (
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
    select row_to_json(told)::text
    from told
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

_LETTERS_OF_TOPIC = """
    select row_to_json(letters)::text
    from {schema}.letters
    where topic = %(topic)s
      and number > %(after)s
    order by number
    limit %(limit)s
"""  # letters_topic

_LETTERS_OF_FAMILY = """
    select row_to_json(letters)::text
    from {schema}.letters
    where starts_with(topic, %(topic)s)
      and number > %(after)s
    order by number
    limit %(limit)s
"""  # by the primary key

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

_details = msgspec.json.Decoder(Details)
_run = msgspec.json.Decoder(Run)
_runs = msgspec.json.Decoder(list[Run])
_entry = msgspec.json.Decoder(Entry)
_arrival = msgspec.json.Decoder(Arrival)
_fact = msgspec.json.Decoder(AuditFact)
_letter = msgspec.json.Decoder(DeadLetter)
_worker = msgspec.json.Decoder(WorkerRecord)
_rule = msgspec.json.Decoder(TypeRule)


def get(connection: psycopg.Connection[Any], schema: str, run_id: str | None, key: str | None) -> Details | None:
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


def settled(connection: psycopg.Connection[Any], schema: str, run_id: str, location: str) -> Entry | None:
    """Return the settled entry at a location, or None."""
    row = connection.execute(qualified(_SETTLED, schema), (run_id, location)).fetchone()
    return _entry.decode(row[0]) if row is not None else None


def history(connection: psycopg.Connection[Any], schema: str, run_id: str) -> tuple[Entry, ...]:
    found = connection.execute(qualified(_HISTORY, schema), (run_id,)).fetchall()
    with unreadable.readable(f"the history of run {run_id}"):
        return tuple(_entry.decode(text) for (text,) in found)


def messages(connection: psycopg.Connection[Any], schema: str, run_id: str) -> list[Arrival]:
    """The messages that wait in a run's inbox."""
    found = connection.execute(qualified(_MESSAGES, schema), (run_id,)).fetchall()
    with unreadable.readable(f"the inbox of run {run_id}"):
        return [_arrival.decode(text) for (text,) in found]


def audit(connection: psycopg.Connection[Any], schema: str, run_id: str) -> tuple[AuditFact, ...]:
    """Return the audit facts of a run. Old routine facts that are not trimmed yet are left out."""
    values = {"run_id": run_id, "routine": list(ROUTINE), "kept": KEPT}
    return tuple(_fact.decode(text) for (text,) in connection.execute(qualified(_AUDIT, schema), values))


def few_ends(schema: str, run_ids: Sequence[str]) -> Script[list[Run]]:
    """Return those of a few runs that have ended."""
    text: str | None = yield qualified(_FEW_ENDED, schema), (_text_of(run_ids),)
    found = {run.id: run for run in _ended_in(text)} if text is not None else {}
    return [found[run_id] for run_id in run_ids if run_id in found]


def ends(connection: psycopg.Connection[Any], schema: str, run_ids: Sequence[str]) -> list[Run]:
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


def replies(
    connection: psycopg.Connection[Any], schema: str, asked: Sequence[tuple[str, str]]
) -> dict[str, dict[str, str]]:
    found = (
        connection.execute(qualified(_REPLIES, schema), ([one[0] for one in some], [one[1] for one in some]))
        for some in _in_parts(asked)
    )
    return replies_by_run(chain.from_iterable(found))


def dead_letters(connection: psycopg.Connection[Any], schema: str, query: ListDeadLetters) -> list[DeadLetter]:
    values = {"topic": query.topic, "after": query.after, "limit": query.limit}
    if query.topic is None:
        statement = _LETTERS
    elif query.topic.endswith(FAMILY):
        statement, values["topic"] = _LETTERS_OF_FAMILY, query.topic.removesuffix(FAMILY)
    else:
        statement = _LETTERS_OF_TOPIC
    found = connection.execute(qualified(statement, schema), values)
    return [_letter.decode(text) for (text,) in found]


def counts(connection: psycopg.Connection[Any], schema: str) -> dict[str, dict[RunState, int]]:
    counted: dict[str, dict[RunState, int]] = {}
    for type, state, count in connection.execute(qualified(_COUNTS, schema)):
        if state in _STATES:  # the column may hold an unknown state that was written by hand
            counted.setdefault(type, {})[RunState(state)] = count
    return counted


def workers(connection: psycopg.Connection[Any], schema: str) -> list[WorkerRecord]:
    return [_worker.decode(text) for (text,) in connection.execute(qualified(_WORKERS, schema))]


def types(connection: psycopg.Connection[Any], schema: str) -> list[TypeRule]:
    return [_rule.decode(text) for (text,) in connection.execute(qualified(_TYPES, schema))]


def slots(connection: psycopg.Connection[Any], schema: str, type: str | None) -> list[SlotUse]:
    found = connection.execute(qualified(_SLOTS, schema), (LIMIT_LOCATION,))
    uses = (SlotUse(name=name, used=used, waiting=waiting) for name, used, waiting in found)
    return [use for use in uses if type is None or limits.is_of(use.name, type)]


def orphans(connection: psycopg.Connection[Any], schema: str, limit: int) -> list[str]:
    return [run_id for (run_id,) in connection.execute(qualified(_ORPHANS, schema), (limit,))]


def _text_of(run_ids: Sequence[str]) -> str:
    """Return ids as JSON, because the driver is slow with an array of thousands."""
    return msgspec.json.encode(run_ids).decode()


def _in_parts(values: Sequence[_T]) -> Iterator[list[_T]]:
    for start in range(0, len(values), _IDS_AT_ONCE):
        yield list(values[start : start + _IDS_AT_ONCE])
