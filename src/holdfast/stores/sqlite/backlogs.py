"""Backlogs: how much may be claimed now, and how much is held, without a look at what sleeps or has ended.

The queue is read as claims read it: hopping from lane to lane, each from its head.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from holdfast.core.clock import Micros
from holdfast.core.model import Backlog
from holdfast.stores.sqlite.claims import BEFORE_ALL_PRIORITIES, NEXT_HOLDER, NEXT_LANE

_NEXT_TYPE = """
    select type
    from run indexed by run_queue
    where type > ?
      and worker is null
      and ready_at is not null
    order by type
    limit 1
"""

_DUE_IN_LANE = """
    select count(*), min(ready_at)
    from run indexed by run_queue
    where type = ?
      and priority = ?
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
    type = ""
    while (next_type := connection.execute(_NEXT_TYPE, (type,)).get) is not None:
        type, priority = next_type, BEFORE_ALL_PRIORITIES
        while (lane := connection.execute(NEXT_LANE, (type, priority)).fetchone()) is not None:
            priority = lane[0]
            count, since = connection.execute(_DUE_IN_LANE, (type, priority, now)).get
            if count:
                yield type, count, since


def _expired(connection: apsw.Connection, now: Micros) -> Iterator[tuple[str, int, Micros]]:
    for holder in _holders(connection):
        yield from connection.execute(_EXPIRED, (holder, now))


def _holders(connection: apsw.Connection) -> Iterator[str]:
    holder = ""
    while (found := connection.execute(NEXT_HOLDER, (holder,)).get) is not None:
        holder = found
        yield holder
