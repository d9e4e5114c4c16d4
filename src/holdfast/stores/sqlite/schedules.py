"""Schedules as rows: read once per transaction, and written in bulk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import apsw
import msgspec

from holdfast.core.clock import Micros
from holdfast.core.intent import matches_type
from holdfast.core.model import Schedule
from holdfast.core.questions import Due, ListSchedules
from holdfast.stores.sqlite import rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_GET = """
    select body
    from schedule
    where name = ?
"""  # by the primary key

_PUT = """
    insert into schedule (name, type, next_at, body)
    values (?, ?, ?, ?)
    on conflict (name) do update
    set type = excluded.type, next_at = excluded.next_at, body = excluded.body
"""

_REMOVE = """
    delete from schedule
    where name = ?
"""  # by the primary key

_LIST = """
    select body, type
    from schedule
    where name > ?
    order by name
"""  # by the primary key

_DUE = """
    select body
    from schedule indexed by schedule_due
    where next_at <= ?1
      and (next_at, name) > (?2, ?3)
    order by next_at, name
    limit ?4
"""

_NEXT = """
    select next_at
    from schedule indexed by schedule_due
    where next_at > ?
    order by next_at
    limit 1
"""

_decode = msgspec.json.Decoder(Schedule).decode


class SqliteSchedules:
    """The schedules that a transaction has read, with their changes."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection
        self._known: dict[str, Schedule] = {}
        self._changed: set[str] = set()
        transaction.before_commit.append(self.flush)

    def get(self, name: str) -> Schedule | None:
        if name not in self._known and (body := self._connection.execute(_GET, (name,)).get) is not None:
            self._known[name] = _decode(body)
        return self._known.get(name)

    def put(self, schedule: Schedule) -> None:
        self._known[schedule.name] = schedule
        self._changed.add(schedule.name)

    def remove(self, name: str) -> bool:
        self.flush()
        self._known.pop(name, None)
        self._connection.execute(_REMOVE, (name,))
        return self._connection.changes() > 0

    def flush(self) -> None:
        """Write the changed schedules."""
        if self._changed:
            self._connection.executemany(_PUT, [_row(self._known[name]) for name in self._changed])
            self._changed.clear()


def list_schedules(connection: apsw.Connection, query: ListSchedules) -> list[Schedule]:
    if query.name is not None:
        found: Iterable[rows.Row] = connection.execute(_GET, (query.name,))
        return [schedule for (body,) in found if query.admits(schedule := _decode(body))][: query.limit]
    listed: list[Schedule] = []
    for body, type in connection.execute(_LIST, (query.after,)):
        if len(listed) == query.limit:
            break
        if query.type is None or matches_type(type, query.type):
            listed.append(_decode(body))
    return listed


def due(connection: apsw.Connection, limit: int, after: tuple[Micros, str], now: Micros) -> Due:
    """Return the first due schedules, and the time at which the next schedule becomes due."""
    found = connection.execute(_DUE, (now, *after, limit))
    schedules = tuple(_decode(body) for (body,) in found)
    return Due(schedules=schedules, next_at=connection.execute(_NEXT, (now,)).get, now=now)


def _row(schedule: Schedule) -> rows.Row:
    return schedule.name, schedule.type, schedule.next_at, rows.json_of(schedule)
