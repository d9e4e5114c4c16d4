"""Schedules: how a unit of work loads and writes them, and the questions about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.model import Schedule
from holdfast.core.questions import Due, ListSchedules
from holdfast.stores.postgres.scripts import Connection, Script, Statement, answer, qualified
from holdfast.stores.postgres.topics import SCHEDULING, classid
from holdfast.stores.workspace.reads import ScheduleRead

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


def load(schema: str, reads: Sequence[ScheduleRead]) -> Script[Mapping[str, Schedule]]:
    """Lock and load schedules, always before the rows of runs. Return those that exist, by name."""
    if not reads:
        return {}
    turn = None if all(read.may_skip for read in reads) else SCHEDULING
    names = sorted(read.name for read in reads)
    found = _decode_all((yield qualified(_LOAD, schema), (_json(names), classid(schema), turn)))
    return {schedule.name: schedule for schedule in found}


def writes(schema: str, before: Mapping[str, Schedule], after: Mapping[str, Schedule]) -> list[Statement]:
    """Return the statements that write changed schedules."""
    statements: list[Statement] = []
    changed = [_Row.of(schedule) for name, schedule in after.items() if before.get(name) != schedule]
    if changed:
        statements.append((qualified(_PUT, schema), (_json(changed),)))
    if gone := [name for name in before if name not in after]:
        statements.append((qualified(_REMOVE, schema), (_json(gone),)))
    return statements


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
