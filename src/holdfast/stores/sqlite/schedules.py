"""Schedules: set, paused, removed, triggered, and fired when a slot of theirs has come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import apsw
import msgspec

from holdfast.core import schedules as rules
from holdfast.core.clock import Micros
from holdfast.core.intent import matches_type
from holdfast.core.model import Firing, Intent, Schedule
from holdfast.core.ports import Due, Fired, ScheduleQuery
from holdfast.stores.sqlite import rows, starts
from holdfast.stores.sqlite.desk import Desk

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


def put(desk: Desk, wanted: Sequence[Schedule]) -> list[Schedule]:
    """Set schedules; of several of one name the last counts."""
    now, book = desk.now(), _Book(desk)
    for schedule in wanted:
        book.change(rules.planned(book.get(schedule.name), schedule, now))
    book.write(is_rescheduled=True)
    return [book.known[schedule.name] for schedule in wanted]


def restore(desk: Desk, wanted: Sequence[Schedule]) -> int:
    """Keep schedules as they stood elsewhere, unless there are such; how many were not there."""
    book = _Book(desk)
    unknown = [schedule for schedule in wanted if book.get(schedule.name) is None]
    for schedule in unknown:
        book.change(schedule)
    book.write(is_rescheduled=True)
    return len(unknown)


def pause(desk: Desk, names: Sequence[str], *, is_paused: bool) -> list[bool]:
    """Have schedules fire no more, or again; of each, whether that changed anything."""
    now, book = desk.now(), _Book(desk)
    change = rules.paused if is_paused else rules.resumed
    changed: list[bool] = []
    for name in names:
        before = book.get(name)
        after = None if before is None else change(before, now)
        if after is not None:
            book.change(after)
        changed.append(after is not None)
    book.write(is_rescheduled=True)
    return changed


def remove(desk: Desk, names: Sequence[str]) -> list[bool]:
    """Forget schedules; of each, whether there was one."""
    removed: list[bool] = []
    for name in names:
        desk.connection.execute(_REMOVE, (name,))
        removed.append(desk.connection.changes() > 0)
    return removed


def trigger(desk: Desk, name: str, run_id: str) -> bool:
    """Make a run of a schedule, unless that was done before; whether there is such a schedule."""
    now, book = desk.now(), _Book(desk)
    schedule = book.get(name)
    if schedule is not None and desk.run(run_id) is None:
        after, intent = rules.triggered(schedule, _open_run_ids(desk, schedule), run_id, now)
        starts.create_children(desk, [intent], now)
        book.change(after)
        book.write()
    return schedule is not None


def fire(desk: Desk, firings: Sequence[Firing]) -> list[Fired]:
    """Make the runs of slots that are due, each schedule if it is still as it was when that was found."""
    now, book = desk.now(), _Book(desk)
    intents: list[Intent] = []
    told: list[Fired] = []
    for firing in firings:
        if book.get(firing.schedule.name) != firing.schedule:
            told.append(Fired(is_stale=True))
            continue
        after, made, fired = rules.fired(firing, _open_run_ids(desk, firing.schedule), now)
        intents += made
        book.change(after)
        told.append(fired)
    if intents:
        starts.create_children(desk, intents, now)
    book.write()
    return told


def _open_run_ids(desk: Desk, schedule: Schedule) -> list[str]:
    runs = [desk.run(run_id) for run_id in schedule.open_run_ids]
    return [run.id for run in runs if run is not None and not run.state.is_end]


class _Book:
    """The schedules that one operation has read, and what it changes of them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.known: dict[str, Schedule] = {}
        self._changed: set[str] = set()

    def get(self, name: str) -> Schedule | None:
        if name not in self.known and (row := self._desk.one(_GET, name)) is not None:
            self.known[name] = _decode(row[0])
        return self.known.get(name)

    def change(self, after: Schedule) -> None:
        if self.known.get(after.name) != after:
            self.known[after.name] = after
            self._changed.add(after.name)

    def write(self, *, is_rescheduled: bool = False) -> None:
        if self._changed:
            self._desk.connection.executemany(_PUT, [_row(self.known[name]) for name in self._changed])
            self._desk.news.is_rescheduled |= is_rescheduled


def list_schedules(connection: apsw.Connection, query: ScheduleQuery) -> list[Schedule]:
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
    """The first schedules that are due, and when the next one is that is not."""
    found = connection.execute(_DUE, (now, *after, limit))
    schedules = tuple(_decode(body) for (body,) in found)
    return Due(schedules=schedules, next_at=connection.execute(_NEXT, (now,)).get, now=now)


def _row(schedule: Schedule) -> rows.Row:
    return schedule.name, schedule.type, schedule.next_at, rows.json_of(schedule)
