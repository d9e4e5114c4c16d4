"""Schedules: locked and loaded before the runs they are about, and changed by the operations of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.core import schedules as rules
from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.core.model import Firing, Schedule
from holdfast.core.ports import Due, Fired, ScheduleQuery
from holdfast.stores.operations import schedules as model
from holdfast.stores.postgres.calls import Calls, answer
from holdfast.stores.postgres.deciding import PART, TRANSACTION, decided
from holdfast.stores.postgres.statements import qualified
from holdfast.stores.postgres.talks import Connection, Talk
from holdfast.stores.postgres.topics import SCHEDULING, classid
from holdfast.stores.postgres.wishes import Wishes
from holdfast.stores.postgres.working import WorkingSet

_LOAD = "select {schema}.load_schedules_v1(%s, %s, %s)"

_PUT = """
    insert into {schema}.schedules (name, type, next_at, body)
    select name, type, next_at, body
    from json_to_recordset(%s::json) as changed (name text, type text, next_at bigint, body text)
    order by name
    on conflict (name) do update
    set type = excluded.type,
        next_at = excluded.next_at,
        body = excluded.body
"""

_REMOVE = """
    delete from {schema}.schedules
    where name in (select json_array_elements_text(%s::json))
"""  # by the primary key

_GET = """
    select body
    from {schema}.schedules
    where name = %s
"""  # by the primary key

_LIST = """
    select body
    from {schema}.schedules
    where name > %s
      and (%s::text is null or type = %s or starts_with(type, %s))
    order by name
    limit %s
"""  # by the primary key

_DUE = "select {schema}.due_schedules_v1(%s, %s, %s, %s)"

T = TypeVar("T")

_decode = msgspec.json.Decoder(Schedule).decode
_decode_all = msgspec.json.Decoder(list[Schedule]).decode
_decode_due = msgspec.json.Decoder(Due).decode


class _Row(msgspec.Struct, frozen=True):
    name: str
    type: str
    next_at: Micros | None
    body: str

    @classmethod
    def of(cls, schedule: Schedule) -> _Row:
        return cls(schedule.name, schedule.type, schedule.next_at, _json(schedule))


def put(calls: Calls, wanted: Sequence[Schedule], at: Micros | None) -> Talk[tuple[Sequence[Schedule], News]]:
    names = [schedule.name for schedule in wanted]
    return _changing(calls, names, Wishes(), lambda working, now: model.put(working.unit, wanted, now), at)


def restore(calls: Calls, wanted: Sequence[Schedule], at: Micros | None) -> Talk[tuple[int, News]]:
    names = [schedule.name for schedule in wanted]
    return _changing(calls, names, Wishes(), lambda working, _: model.restore(working.unit, wanted), at)


def pause(
    calls: Calls, names: Sequence[str], at: Micros | None, *, is_paused: bool
) -> Talk[tuple[Sequence[bool], News]]:
    return _changing(
        calls, names, Wishes(), lambda working, now: model.pause(working.unit, names, now, is_paused=is_paused), at
    )


def remove(calls: Calls, names: Sequence[str], at: Micros | None) -> Talk[tuple[Sequence[bool], News]]:
    return _changing(calls, names, Wishes(), lambda working, _: model.remove(working.unit, names), at)


def trigger(calls: Calls, name: str, run_id: str, at: Micros | None) -> Talk[tuple[bool, News]]:
    wishes = Wishes(runs={run_id})
    return _changing(calls, [name], wishes, lambda working, now: model.trigger(working.unit, name, run_id, now), at)


def fire(calls: Calls, firings: Sequence[Firing], at: Micros | None) -> Talk[tuple[Sequence[Fired], News]]:
    wishes = Wishes()
    for firing in firings:
        wishes.runs.update(firing.schedule.open_run_ids)
        wishes.runs.update(rules.run_id_of(firing.schedule, slot) for slot in firing.slots)
    names = [firing.schedule.name for firing in firings]
    return _changing(
        calls, names, wishes, lambda working, now: model.fire(working.unit, firings, now), at, is_patient=False
    )


def _changing(
    calls: Calls,
    names: Sequence[str],
    wishes: Wishes,
    operation: Callable[[WorkingSet, Micros], T],
    at: Micros | None,
    *,
    is_patient: bool = True,
) -> Talk[tuple[T, News]]:
    """Carry out an operation of the model on some schedules and the runs it wants to know of.

    Schedules are locked before runs, always. Who is not patient passes over those that somebody else is at.
    """

    def work() -> Talk[tuple[T, News]]:
        turn = SCHEDULING if is_patient else None
        load = qualified(_LOAD, calls.schema)
        found = _decode_all((yield load, (_json(sorted(set(names))), classid(calls.schema), turn)))
        before = {schedule.name: schedule for schedule in found}
        after: dict[str, Schedule] = {}

        def on_working_set(working: WorkingSet, now: Micros) -> T:
            working.schedules = dict(before)
            told = operation(working, now)
            after.clear()
            after.update(working.schedules)
            return told

        told = yield from decided(calls, wishes, on_working_set, at, PART)
        yield from _write(calls, before, after)
        return told

    return TRANSACTION.around(work())


def _write(calls: Calls, before: dict[str, Schedule], after: dict[str, Schedule]) -> Talk[None]:
    changed = [_Row.of(schedule) for name, schedule in after.items() if before.get(name) != schedule]
    if changed:
        yield qualified(_PUT, calls.schema), (_json(changed),)
    if gone := [name for name in before if name not in after]:
        yield qualified(_REMOVE, calls.schema), (_json(gone),)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def list_schedules(connection: Connection, schema: str, query: ScheduleQuery) -> list[Schedule]:
    if query.name is not None:
        found: Iterable[tuple[str]] = connection.execute(qualified(_GET, schema), (query.name,))
        return [schedule for (body,) in found if query.admits(schedule := _decode(body))][: query.limit]
    # A pattern that is no prefix names nothing but itself.
    prefix = query.type[:-1] if query.type is not None and query.type.endswith(".*") else "\U0010ffff"
    arguments = (query.after, query.type, query.type, prefix, query.limit)
    return [_decode(body) for (body,) in connection.execute(qualified(_LIST, schema), arguments)]


def due(connection: Connection, schema: str, limit: int, after: tuple[Micros, str], at: Micros | None) -> Due:
    """The first schedules that are due, and when the next one is that is not."""
    return _decode_due(answer(connection, qualified(_DUE, schema), limit, *after, at))
