"""Transfers: export of runs, events and dead letters to another store, and import from one.

As for every other write, `stores.operations` makes the decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.audit import kept
from holdfast.core.clock import Micros
from holdfast.core.entries import received_in
from holdfast.core.model import EntryKind, Schedule
from holdfast.core.news import News
from holdfast.core.transfer import Dump, KeptEvent, Origin, Restoration, Restored, is_at_rest
from holdfast.stores.operations import schedules, transfers
from holdfast.stores.postgres.reads import DETAILS_FIELDS
from holdfast.stores.postgres.scripts import Calls, Connection, Script, qualified
from holdfast.stores.postgres.topics import RESTORING, TAKE_TURN, classid
from holdfast.stores.postgres.unit_of_work import PART, TRANSACTION, decide
from holdfast.stores.postgres.unreadable import readable
from holdfast.stores.workspace.reads import (
    FEW_WAITING,
    AuditRead,
    EmitRead,
    EventRead,
    FlowRead,
    KeyRead,
    NumbersRead,
    RowRead,
    RunRead,
    ScheduleRead,
    TopicRead,
    TypeRead,
)
from holdfast.stores.workspace.row_unit import RowUnit

STEPS_LIMIT = 1_000_000
"""Maximum gap in event numbers to draw one by one, which every role may do. Only the owner may jump a wider gap."""

_DUMP = f"""
    select json_build_object({DETAILS_FIELDS},
        'entries', coalesce(
            (
                select json_agg(entry order by entry.position = 0, entry.position, entry.location)
                from {{schema}}.entries_read as entry
                where entry.run_id = run.id
            ),
            '[]'
        ),
        'inbox', coalesce(
            (
                select json_agg(arrival order by arrival.number)
                from {{schema}}.inbox_read as arrival
                where arrival.run_id = run.id
            ),
            '[]'
        ),
        'receipts', coalesce(
            (
                select json_object_agg(receipt.message_id, receipt.at)
                from {{schema}}.receipts as receipt
                where receipt.run_id = run.id
            ),
            '{{}}'
        ),
        'replies', coalesce(
            (
                select json_object_agg(reply.message_id, json_build_array(reply.payload, reply.at))
                from {{schema}}.replies as reply
                where reply.run_id = run.id
            ),
            '{{}}'
        ),
        'audit', coalesce(
            (
                select json_agg(
                    json_build_object(
                        'run_id', fact.run_id, 'event', fact.event, 'at', fact.at,
                        'data', coalesce({{schema}}.json_of(fact.data), '{{}}')
                    )
                    order by fact.number
                )
                from {{schema}}.audits as fact
                where fact.run_id = run.id
            ),
            '[]'
        )
    )::text
    from unnest(%s::text[]) with ordinality as wanted (id, place)
    join {{schema}}.runs_read as run on run.id = wanted.id
    order by wanted.place
"""  # noqa: S608 - built from constants; by the primary keys, and audits_run; one statement sees one instant

_KEPT_EVENTS = """
    select number, topic, id, payload, at, reached, state = 'pending'
    from {schema}.events
    where number > %s
      and state in ('open', 'pending')
    order by number
    limit %s
"""  # by the primary key

_LAST_EVENT = """
    select coalesce(pg_sequence_last_value('{schema}.events_number_seq'), 0)
"""

_ORIGIN = """
    select value
    from {schema}.meta
    where name = %s
"""  # by the primary key

_LATEST_AT = """
    select at
    from {schema}.events
    order by number desc
    limit 1
"""  # by the primary key

_DRAW = """
    select max(nextval('{schema}.events_number_seq'))
    from generate_series(1, %s)
"""

_JUMP = """
    select setval('{schema}.events_number_seq', %s)
"""

_KEEP_ORIGIN = """
    insert into {schema}.meta (name, value)
    values (%s, %s)
    on conflict (name) do update
    set value = excluded.value
"""

_dump = msgspec.json.Decoder(Dump)

_R = TypeVar("_R")


class Read(Protocol):
    """Runs a reading job on a connection."""

    def __call__(self, job: Callable[[Connection], _R], /) -> Awaitable[_R]: ...


class Write(Protocol):
    """Runs a script, repeats it after a lost connection, and announces its news."""

    def __call__(self, script: Callable[[], Script[tuple[_R, News]]], /, *, is_small: bool) -> Awaitable[_R]: ...


_origin = msgspec.json.Decoder(Origin)


class PostgresTransfer:
    """The capability `Transfer`. `read` and `write` run jobs and scripts on the server."""

    def __init__(self, calls: Calls, *, read: Read, write: Write, time: Callable[[], Micros | None]) -> None:
        self._calls = calls
        self._read = read
        self._write = write
        self._time = time

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        return await self._read(lambda connection: dump(connection, self._calls.schema, run_ids))

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        return await self._read(lambda connection: kept_events(connection, self._calls.schema, after, limit))

    async def last_event(self) -> int:
        return await self._read(lambda connection: last_event(connection, self._calls.schema))

    async def restore(self, restoration: Restoration) -> Restored:
        at = self._time()
        await self._write(lambda: reserved(self._calls, restoration), is_small=False)
        return await self._write(lambda: restored(self._calls, restoration, at), is_small=False)

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        at = self._time()
        reads = [ScheduleRead(schedule.name) for schedule in wanted]

        def operation(unit: RowUnit, _: Micros) -> int:
            return schedules.restore(unit, wanted)

        return await self._write(lambda: decide(self._calls, reads, operation, at), is_small=False)


def dump(connection: Connection, schema: str, run_ids: Sequence[str]) -> list[Dump]:
    """Return those of the runs that are at rest, with all their rows."""
    with readable("a run"):
        found = [_dump.decode(text) for (text,) in connection.execute(qualified(_DUMP, schema), (list(run_ids),))]
    return [replace(one, audit=kept(one.audit)) for one in found if is_at_rest(one.run)]


def kept_events(connection: Connection, schema: str, after: int, limit: int) -> list[KeptEvent]:
    """Return events after a number that a run may still receive."""
    names = KeptEvent.__struct_fields__
    found = connection.execute(qualified(_KEPT_EVENTS, schema), (after, limit))
    return [KeptEvent(**dict(zip(names, row, strict=True))) for row in found]


def last_event(connection: Connection, schema: str) -> int:
    row = connection.execute(qualified(_LAST_EVENT, schema)).fetchone()
    assert row is not None
    return int(row[0])


def reserved(calls: Calls, restoration: Restoration) -> Script[tuple[None, News]]:
    """Reserve the event numbers of an export that this store does not know yet, in a transaction of its own.

    A sequence does not roll back. If the numbers were drawn together with the first import, an import that is cut off
    and repeated would find its own numbers in use, and skip the events that have them.
    """
    return (yield from TRANSACTION.around(_reserved(calls.schema, restoration)))


def _reserved(schema: str, restoration: Restoration) -> Script[tuple[None, News]]:
    name = _name(restoration)
    yield TAKE_TURN, (classid(schema), RESTORING)
    if (yield qualified(_ORIGIN, schema), (name,)) is None:
        since = (yield qualified(_LATEST_AT, schema), ()) or 0
        high = yield from _raise_numbers(schema, restoration.last_event)
        yield qualified(_KEEP_ORIGIN, schema), (name, _encoded(Origin(high=high, since=since, at=since)))
    return None, News()


def _raise_numbers(schema: str, last: int) -> Script[int]:
    """Make later events get higher numbers than `last`. Returns the highest number that other events may have."""
    high: int = yield qualified(_LAST_EVENT, schema), ()
    gap = last - high
    if gap > STEPS_LIMIT:
        yield qualified(_JUMP, schema), (last,)
    elif gap > 0:
        drawn: int = yield qualified(_DRAW, schema), (gap,)
        if drawn > last:  # other sessions have drawn some of the numbers meanwhile, and it is unknown which
            return drawn
    return high


def restored(calls: Calls, restoration: Restoration, at: Micros | None) -> Script[tuple[Restored, News]]:
    """Write data from another store, after `reserved`. Parts that were written before are skipped."""
    return (yield from TRANSACTION.around(_restored(calls, restoration, at)))


def _restored(calls: Calls, restoration: Restoration, at: Micros | None) -> Script[tuple[Restored, News]]:
    schema, name = calls.schema, _name(restoration)
    yield TAKE_TURN, (classid(schema), RESTORING)
    origin = _origin.decode((yield qualified(_ORIGIN, schema), (name,)))
    after = origin

    def operation(unit: RowUnit, now: Micros) -> Restored:
        nonlocal after
        unit.rows.origins[restoration.export_id] = origin
        answer = transfers.restore(unit, restoration, now)
        after = unit.rows.origins[restoration.export_id]
        return answer

    result, news = yield from decide(calls, _reads_for(restoration, origin), operation, at, PART)
    yield qualified(_KEEP_ORIGIN, schema), (name, _encoded(after))
    return result, news


def _name(restoration: Restoration) -> str:
    return f"origin {restoration.export_id}"


def _encoded(origin: Origin) -> str:
    return msgspec.json.encode(origin).decode()


def _reads_for(restoration: Restoration, origin: Origin) -> Iterator[RowRead]:
    for dump in restoration.runs:
        yield RunRead(dump.run.id)
        yield AuditRead(dump.run.id)
        if dump.run.key is not None:
            yield KeyRead(dump.run.key)
    queued = Counter(event.topic for event in restoration.events if event.is_queued)
    yield from (EmitRead(topic, count + FEW_WAITING) for topic, count in queued.items())
    for event in restoration.events:
        yield TopicRead(event.topic, 1)
        yield EventRead(event.topic, event.id)
    for flow in restoration.flows:
        yield TypeRead(flow.type)
        yield FlowRead(flow.type, has_texts=True)
    if wanted := _numbers_wanted(restoration, origin.high):
        yield NumbersRead(wanted)


def _numbers_wanted(restoration: Restoration, high: int) -> int:
    """Return the maximum number of events that get new numbers."""
    if not high:
        return 0
    unread = [one for dump in restoration.runs for one in dump.inbox]
    entries = [entry for dump in restoration.runs for entry in dump.entries if entry.kind is EntryKind.EVENT]
    had = [one for entry in entries for one in received_in(entry)]
    queued = sum(event.is_queued and event.number <= high for event in restoration.events)
    return queued + sum(one.is_exclusive for one in unread) + sum(one.is_exclusive for one in had)
