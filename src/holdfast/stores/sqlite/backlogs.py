"""Backlogs: counts of claimable and held runs, without reading suspended or ended runs.

The count reads the queue as a claim does: it seeks from lane to lane and reads each lane from its head.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from holdfast.core.clock import Micros
from holdfast.core.model import Backlog
from holdfast.stores.sqlite.claims import NEXT_TYPE, holders, next_lane

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
    """Count the runs that a worker can claim now, by type: ready runs and runs with an expired lease."""
    found: dict[str, Backlog] = {}
    for type, count, since in (*_ready(connection, now), *_expired(connection, now)):
        known = found.get(type, Backlog(type=type, count=0, since=since))
        found[type] = Backlog(type=type, count=known.count + count, since=min(known.since, since))
    return sorted(found.values(), key=lambda one: one.type)


def held(connection: apsw.Connection) -> dict[str, int]:
    """Count the runs that each worker holds."""
    return {holder: connection.execute(_HELD, (holder,)).get for holder in holders(connection)}


def _ready(connection: apsw.Connection, now: Micros) -> Iterator[tuple[str, int, Micros]]:
    type = ""
    while (first := connection.execute(NEXT_TYPE, (type,)).fetchone()) is not None:
        type, *lane = first
        while lane is not None:
            priority, rank, _, _ = lane
            count, since = connection.execute(_DUE_IN_LANE, (type, priority, rank, now)).get
            if count:
                yield type, count, since
            lane = next_lane(connection, type, priority, rank)
        type += "\0"  # the smallest string greater than this type


def _expired(connection: apsw.Connection, now: Micros) -> Iterator[tuple[str, int, Micros]]:
    for holder in holders(connection):
        yield from connection.execute(_EXPIRED, (holder, now))
