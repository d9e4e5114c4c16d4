"""Pruning: find expired rows without reading the rows that stay, and remove ended runs with all their rows.

The pruner examines an event when it is new, and again when the rules of its topic have changed. It sets the time at
which the event expires, and searches the topic for events beyond its maximum.

A run is removed in one transaction. If it has more rows than one transaction may remove, it is hidden first, so that no
operation can reopen the rest of it. Each later transaction then removes a part.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

import apsw

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import DeadReason, Run
from holdfast.core.topics import topic_of
from holdfast.stores.operations import pruning as operations
from holdfast.stores.operations.unit_of_work import OddRow, OldEvent, OldRun
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.histories import entry
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_NEW_EVENTS = """
    select number, topic, at
    from event
    where expires_at is null
    order by number
    limit ?
"""  # event_expiry

_SET_EXPIRY = "update event set expires_at = ? where number = ?"  # by the primary key

_EXPIRED = """
    select number, topic, state
    from event
    where expires_at <= ?
    order by expires_at
    limit ?
"""  # event_expiry

_GIVE_UP = """
    insert into letter (id, topic, payload, at, reason)
    select id, topic, payload, ?, ?
    from event
    where number = ?
"""  # by the primary key


def _surplus(state: str, index: str, order: str) -> tuple[str, str]:
    """Return the statements that find the newest event beyond a maximum, and the first events up to it."""
    newest_first = ", ".join(f"{column} desc" for column in order.split(", "))
    last = f"""
        select number
        from event indexed by {index}
        where topic = ?
          and state = '{state}'
        order by {newest_first}
        limit 1 offset ?
    """
    too_many = f"""
        select number, topic, state
        from event indexed by {index}
        where topic = ?
          and state = '{state}'
          and number <= ?
        order by {order}
        limit ?
    """
    return last, too_many


SURPLUS = (_surplus("open", "event_topic", "at, number"), _surplus("pending", "event_pending", "number"))

# The index `receipt_age` or `reply_age`, then the primary key.
_DROP_RECEIPTS, _DROP_REPLIES = (
    f"""
    delete from {table}
    where (run_id, message_id) in (
        select run_id, message_id
        from {table}
        where at <= ?
        order by at
        limit ?
    )
    """
    for table in ("receipt", "reply")
)


class SqliteHousekeeping:
    """Finds old events, receipts, replies and runs, and removes runs."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._connection = transaction.connection
        self._newest: dict[str, int] = {}

    def expired_events(self, limit: int, now: Micros) -> tuple[Sequence[OldEvent], bool]:
        found = self._transaction.all(_NEW_EVENTS, limit)
        known = self._transaction.events.topics()
        expiries = [(at + topic_of(topic, known).retention, number) for number, topic, at in found]
        if expiries:
            self._connection.executemany(_SET_EXPIRY, expiries)
        self._newest = {topic: number for number, topic, _ in found}
        return [OldEvent(*row) for row in self._transaction.all(_EXPIRED, now, limit)], len(found) == limit

    def surplus_events(self, limit: int) -> Sequence[OldEvent]:
        """Return events beyond the maximum of their topic, for the topics of the last `expired_events` call."""
        surplus: list[OldEvent] = []
        for topic, newest in self._newest.items():
            most = topic_of(topic, self._transaction.events.topics()).max_pending
            for last, too_many in SURPLUS:
                found = self._transaction.one(last, topic, most)
                if found is not None:
                    left = limit - len(surplus)
                    surplus += [OldEvent(*row) for row in self._transaction.all(too_many, topic, found[0], left)]
            if len(surplus) == limit:
                # There may be more than the limit: mark an event, so that the next call examines this topic again.
                self._connection.execute(_SET_EXPIRY, (None, newest))
        return surplus

    def give_up(self, event: OldEvent, reason: DeadReason, now: Micros) -> None:
        self._connection.execute(_GIVE_UP, (now, reason, event.number))

    def forget_receipts(self, until: Micros, limit: int) -> int:
        self._connection.execute(_DROP_RECEIPTS, (until, limit))
        return self._connection.changes()

    def forget_replies(self, until: Micros, limit: int) -> int:
        self._connection.execute(_DROP_REPLIES, (until, limit))
        return self._connection.changes()

    def ended_runs(self, limit: int, usual: Micros, room: int, now: Micros) -> Sequence[OldRun]:
        self._transaction.flush()  # other operations share this transaction
        return list(ended_runs(self._connection, limit, usual, room, now))

    def defer(self, run: Run) -> None:
        self._connection.execute(_DEFER, (run.purge_at, run.id))
        self._transaction.runs.forget([run.id])

    def remove(self, runs: Sequence[Run]) -> None:
        _remove(self._connection, runs)
        self._transaction.runs.forget(run.id for run in runs)

    def remove_part(self, run: Run, room: int, now: Micros) -> None:
        _remove_part(self._connection, run, room, now)
        self._transaction.runs.forget([run.id])


# Ended runs

_RUNS_AT_ONCE = 500

# The number of rows of a run in the tables where it can have many. Each count stops at the limit that matters.
_SIZE = """
    (select count(*) from (select 1 from entry where run_id = run.id limit ?1))
    + (select count(*) from (select 1 from audit where run_id = run.id limit ?1))
    + (select count(*) from (select 1 from receipt where run_id = run.id limit ?1))
    + (select count(*) from (select 1 from reply where run_id = run.id limit ?1))
    + (select count(*) from (select 1 from value where run_id = run.id limit ?1))
"""  # by the primary keys, and audit_run

# With a limit of 0 the rows are not counted.
_ABOUT_RUNS = f"""
    select case when ?1 then {_SIZE} else 0 end, {rows.TAGGED_RUN}
    from json_each(?2) as chosen
    cross join run on run.id = chosen.value
    cross join intent on intent.run_id = run.id
    order by chosen.id
"""  # by the primary keys

_DUE_RUNS = """
    select id
    from run indexed by run_purge
    where purge_at <= ?
    order by purge_at, id
    limit ?
"""

_DUE_RUNS_OF_TYPE = """
    select finished_at, id
    from run indexed by run_ended
    where type = ?
      and finished_at <= ?
      and finished_at is not null
      and purge_at is null
    order by finished_at, id
"""

_NEXT_TYPE = """
    select type
    from run indexed by run_ended
    where type > ?
      and finished_at is not null
      and purge_at is null
    order by type
    limit 1
"""

_RETENTIONS = "select name, retention from type where retention is not null"  # full scan: there are few types
_DEFER = "update run set purge_at = ? where id = ?"  # by the primary key

_HIDE = """
    update run
    set deleted_at = ifnull(deleted_at, ?1), purge_at = ?1, key = null
    where id = ?2
"""  # by the primary key

_DROP_TAG = """
    delete from tag
    where name = ?
      and value = ?
      and created_at = ?
      and run_id = ?
"""  # by the primary key

# All rows of runs, the runs themselves last: by the primary keys, and audit_run.
_DROPS = tuple(
    f"delete from {table} where {id} in (select value from json_each(?))"
    for table, id in (
        *((table, "run_id") for table in ("entry", "audit", "receipt", "reply", "value", "inbox", "wait", "intent")),
        ("run", "id"),
    )
)

# A limited number of rows of one run.
_DROPS_SOME = tuple(
    f"delete from {table} where run_id = ?1 and {id} in (select {id} from {table} where run_id = ?1 limit ?2)"
    for table, id in (
        ("entry", "location"),
        ("audit", "number"),
        ("receipt", "message_id"),
        ("reply", "message_id"),
        ("value", "name"),
    )
)


def ended_runs(
    connection: apsw.Connection, limit: int | None, usual: Micros, room: int, now: Micros
) -> Iterator[OldRun]:
    """Yield the first runs that may be due, with the facts that decide whether they are removed."""
    kept = _retentions(connection, usual)
    ids = _due_runs(connection, limit, kept, now)
    for start in range(0, len(ids), _RUNS_AT_ONCE):
        some = rows.json_of(ids[start : start + _RUNS_AT_ONCE])
        about: list[Row] = connection.execute(_ABOUT_RUNS, (room and room + 1, some)).fetchall()
        for row in about:
            with suppress(OddRow):  # an unreadable run stays: its retention cannot be judged
                run = rows.tagged_run_of(row[1:])
                yield OldRun(run, kept[run.type], _is_kept_for_parent(connection, run), row[0])


def count_due(connection: apsw.Connection, usual: Micros, now: Micros) -> dict[str, int]:
    """Count the runs that are due for removal, by type."""
    return operations.count_due(ended_runs(connection, None, usual, 0, now), now)


def _is_kept_for_parent(connection: apsw.Connection, run: Run) -> bool:
    if run.parent_id is None or run.parent_location is None:
        return False
    try:
        return rules.is_kept_for_parent(entry(connection, run.parent_id, run.parent_location), run)
    except (OddRow, UnicodeDecodeError):  # it is examined again later
        return True


def _retentions(connection: apsw.Connection, usual: Micros) -> dict[str, Micros]:
    """Return the retention of each type. Types without one get the usual retention."""
    return defaultdict(lambda: usual, {str(type): kept for type, kept in connection.execute(_RETENTIONS)})


def _types(connection: apsw.Connection) -> Iterator[str]:
    """Yield the types that have ended runs without their own purge time, one index seek per type."""
    last = ""
    while (found := connection.execute(_NEXT_TYPE, (last,)).get) is not None:
        last = found
        yield last


def _due_runs(connection: apsw.Connection, limit: int | None, kept: Mapping[str, Micros], now: Micros) -> list[str]:
    """Return the first due runs: those with their own purge time, then the others by the time they ended.

    So runs from the same time, whose rows share pages, are removed together.
    """
    most = sys.maxsize if limit is None else limit
    ids = [str(run_id) for (run_id,) in connection.execute(_DUE_RUNS, (now, most)).fetchall()]
    if len(ids) < most:
        ended = [_ended(connection, type, now - kept[type]) for type in _types(connection)]
        ids += [run_id for _, run_id in islice(merge(*ended), most - len(ids))]
        for reading in ended:
            reading.close()
    return ids


def _ended(connection: apsw.Connection, type: str, until: Micros) -> Generator[Row, None, None]:
    """Yield the due runs of a type by the time they ended. Rows are read on demand."""
    with closing(connection.execute(_DUE_RUNS_OF_TYPE, (type, until))) as found:
        yield from found


def _remove(connection: apsw.Connection, runs: Sequence[Run]) -> None:
    """Remove runs with all their rows."""
    if tags := [(name, value, run.created_at, run.id) for run in runs for name, value in run.tags.items()]:
        connection.executemany(_DROP_TAG, tags)
    ids = rows.json_of([run.id for run in runs])
    for statement in _DROPS if runs else ():
        connection.execute(statement, (ids,))


def _remove_part(connection: apsw.Connection, run: Run, room: int, now: Micros) -> None:
    """Hide a run and remove up to `room` of its rows."""
    connection.execute(_HIDE, (now, run.id))
    for statement in _DROPS_SOME:
        if room > 0:
            connection.execute(statement, (run.id, room))
            room -= connection.changes()
