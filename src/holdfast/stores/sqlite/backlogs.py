"""Backlogs: how much may be claimed now, and how much is held, without a look at what sleeps or has ended.

The queue is read as claims read it: hopping from lane to lane, each from its head.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from holdfast.core.clock import Micros
from holdfast.core.model import Backlog
from holdfast.stores.sqlite.claims import NEXT_HOLDER, NEXT_PRIORITY, NEXT_RANK, NEXT_TYPE

_DUE_IN_LANE = """
    select count(*), min(ready_at)
    from run indexed by run_queue
    where type = ?
      and priority = ?
      and rank = ?
      and worker is null
      and ready_at <= ?
"""

_EXPIRED = """
    select type, count(*), min(ready_at)
    from run indexed by run_held
    where worker = ?
      and ready_at <= ?
    group by type
"""

_HELD = """
    select count(*)
    from run indexed by run_held
    where worker = ?
"""


def backlog(connection: apsw.Connection, now: Micros) -> list[Backlog]:
    """What may be claimed now, by type."""
    found: dict[str, Backlog] = {}
    for type, count, since in (*_ready(connection, now), *_expired(connection, now)):
        known = found.get(type, Backlog(type=type, count=0, since=since))
        found[type] = Backlog(type=type, count=known.count + count, since=min(known.since, since))
    return sorted(found.values(), key=lambda one: one.type)


def held(connection: apsw.Connection) -> dict[str, int]:
    """How many runs each worker holds."""
    return {holder: connection.execute(_HELD, (holder,)).get for holder in _holders(connection)}


def _ready(connection: apsw.Connection, now: Micros) -> Iterator[tuple[str, int, Micros]]:
    lane = connection.execute(NEXT_TYPE, ("",)).fetchone()
    while lane is not None:
        type, priority, rank, _, _ = lane
        count, since = connection.execute(_DUE_IN_LANE, (type, priority, rank, now)).get
        if count:
            yield type, count, since
        lane = _after(connection, type, priority, rank)


def _after(
    connection: apsw.Connection, type: str, priority: int, rank: int
) -> tuple[str, int, int, Micros, str] | None:
    """The lane that comes next: of the next rank, of the next priority, or of the next type."""
    for statement, bindings in ((NEXT_RANK, (type, priority, rank)), (NEXT_PRIORITY, (type, priority))):
        if (found := connection.execute(statement, bindings).fetchone()) is not None:
            return type, *found
    return connection.execute(NEXT_TYPE, (type + "\0",)).fetchone()  # the least text after this one


def _expired(connection: apsw.Connection, now: Micros) -> Iterator[tuple[str, int, Micros]]:
    for holder in _holders(connection):
        yield from connection.execute(_EXPIRED, (holder, now))


def _holders(connection: apsw.Connection) -> Iterator[str]:
    holder = ""
    while (found := connection.execute(NEXT_HOLDER, (holder,)).get) is not None:
        holder = found
        yield holder
