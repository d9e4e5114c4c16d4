"""Schedules: locked and loaded before their runs, and changed by the shared operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.commands import Command, FireSchedules
from holdfast.core.hint import News
from holdfast.core.model import Schedule
from holdfast.core.questions import Due, ListSchedules
from holdfast.stores.operations import commands
from holdfast.stores.operations import schedules as model
from holdfast.stores.postgres.scripts import Connection, Script
from holdfast.stores.postgres.sql import Calls, answer, qualified
from holdfast.stores.postgres.topics import SCHEDULING, classid
from holdfast.stores.postgres.unit_of_work import PART, TRANSACTION, decided
from holdfast.stores.working.load_request import LoadRequest
from holdfast.stores.working.working_set import WorkingSet

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


def apply(calls: Calls, command: Command[Any], at: Micros | None) -> Script[tuple[Any, News]]:
    """Apply a command about schedules."""

    def operation(working: WorkingSet, now: Micros) -> Any:
        return commands.apply(working.unit, command, now)

    # A firing skips schedules that another process is changing. The other commands wait for their turn.
    is_patient = not isinstance(command, FireSchedules)
    return _changing(calls, command.needs().schedules, LoadRequest.of(command), operation, at, is_patient=is_patient)


def restore(calls: Calls, wanted: Sequence[Schedule], at: Micros | None) -> Script[tuple[int, News]]:
    names = [schedule.name for schedule in wanted]
    return _changing(calls, names, LoadRequest(), lambda working, _: model.restore(working.unit, wanted), at)


def _changing(
    calls: Calls,
    names: Sequence[str],
    to_load: LoadRequest,
    operation: Callable[[WorkingSet, Micros], T],
    at: Micros | None,
    *,
    is_patient: bool = True,
) -> Script[tuple[T, News]]:
    """Run an operation on some schedules and their runs.

    Schedules are always locked before runs. Without `is_patient`, schedules that another transaction has locked are
    skipped.
    """

    def work() -> Script[tuple[T, News]]:
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

        told = yield from decided(calls, to_load, on_working_set, at, PART)
        yield from _write(calls, before, after)
        return told

    return TRANSACTION.around(work())


def _write(calls: Calls, before: dict[str, Schedule], after: dict[str, Schedule]) -> Script[None]:
    changed = [_Row.of(schedule) for name, schedule in after.items() if before.get(name) != schedule]
    if changed:
        yield qualified(_PUT, calls.schema), (_json(changed),)
    if gone := [name for name in before if name not in after]:
        yield qualified(_REMOVE, calls.schema), (_json(gone),)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def list_schedules(connection: Connection, schema: str, query: ListSchedules) -> list[Schedule]:
    if query.name is not None:
        found: Iterable[tuple[str]] = connection.execute(qualified(_GET, schema), (query.name,))
        return [schedule for (body,) in found if query.admits(schedule := _decode(body))][: query.limit]
    # A type without `.*` matches only itself, so its prefix is one that no type has.
    prefix = query.type[:-1] if query.type is not None and query.type.endswith(".*") else "\U0010ffff"
    arguments = (query.after, query.type, query.type, prefix, query.limit)
    return [_decode(body) for (body,) in connection.execute(qualified(_LIST, schema), arguments)]


def due(connection: Connection, schema: str, limit: int, after: tuple[Micros, str], at: Micros | None) -> Due:
    """Return the first schedules that are due, and the time of the next one."""
    return _decode_due(answer(connection, qualified(_DUE, schema), limit, *after, at))
