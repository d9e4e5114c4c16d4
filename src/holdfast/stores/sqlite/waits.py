"""Waits of runs, collected during a transaction and written in bulk."""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.core import rules
from holdfast.core.model import Wait
from holdfast.stores.operations.unit_of_work import OddRow
from holdfast.stores.sqlite import rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_log = logging.getLogger("holdfast.store")

_WAITS = f"""
    select {rows.WAIT_COLUMNS}
    from wait
    where run_id = ?
    order by place
"""  # by the primary key

_DROP = """
    delete from wait
    where run_id = ?
"""  # by the primary key

_PUT = f"""
    insert into wait (run_id, place, topic, {rows.WAIT_COLUMNS})
    values (?, ?, ?, {rows.placed(rows.WAIT_COLUMNS)})
"""

FIRST = """
    select run_id
    from wait indexed by wait_slot
    where topic = ?
      and kind = 'slot'
      and location = ?
    order by after, since, run_id
    limit 1
"""

FIRST_AT_LEVEL = f"""
    select run_id
    from wait indexed by wait_slot
    where topic = ?
      and kind = 'slot'
      and location = '{rules.LIMIT_LOCATION}'
      and after = ?
    order by since, run_id
    limit 1
"""

FOR_EVENT = f"""
    select run_id, {rows.WAIT_COLUMNS}
    from wait
    where topic = ?
    order by run_id, place
"""  # wait_topic

HAS_MORE = """
    select 1
    from wait
    where topic = ?
    limit 1 offset ?
"""  # wait_topic

IN_LINE = f"""
    select run_id, {rows.WAIT_COLUMNS}
    from wait indexed by wait_turn
    where topic = ?
      and kind = 'event'
    order by since, run_id
"""


class SqliteWaits:
    """The waits of a transaction: those to be written, and those already stored."""

    __slots__ = ("_connection", "pending")

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection
        self.pending: dict[str, Sequence[Wait]] = {}
        """Waits not written yet, by run."""

    def of(self, run_id: str) -> Sequence[Wait]:
        known = self.pending.get(run_id)
        return (
            known if known is not None else [rows.wait_of(row) for row in self._connection.execute(_WAITS, (run_id,))]
        )

    def put(self, run_id: str, waits: Sequence[Wait]) -> None:
        self.pending[run_id] = waits

    def first(self, queue: str, location: str) -> str | None:
        self.flush()
        run_id: str | None = self._connection.execute(FIRST, (queue, location)).get
        return run_id

    def first_at(self, queue: str, level: int) -> str | None:
        self.flush()
        run_id: str | None = self._connection.execute(FIRST_AT_LEVEL, (queue, level)).get
        return run_id

    def for_event(self, topic: str) -> Iterator[tuple[str, Sequence[Wait]]]:
        self.flush()
        waiting = self._connection.execute(FOR_EVENT, (topic,)).fetchall()
        for run_id, of_run in groupby(waiting, key=itemgetter(0)):
            try:
                waits = [rows.wait_of(row[1:]) for row in of_run]
            except OddRow as error:
                _log.warning("event of topic %s skips run %s: %s", topic, run_id, error)
                continue
            yield run_id, waits

    def in_line(self, topic: str) -> Iterator[tuple[str, Wait]]:
        self.flush()
        for row in self._connection.execute(IN_LINE, (topic,)):
            try:
                wait = rows.wait_of(row[1:])
            except OddRow as error:
                _log.warning("event of topic %s skips run %s: %s", topic, row[0], error)
                continue
            yield row[0], wait

    def has_more_than(self, topic: str, count: int) -> bool:
        """Return True if more than `count` waits are for events of a topic."""
        self.flush()
        return self._connection.execute(HAS_MORE, (topic, count)).get is not None

    def flush(self) -> None:
        """Write the pending waits. Call it before a statement that searches waits by topic."""
        if not self.pending:
            return
        self._connection.executemany(_DROP, [(run_id,) for run_id in self.pending])
        placed = [
            rows.wait_row(run_id, place, wait)
            for run_id, waits in self.pending.items()
            for place, wait in enumerate(waits)
        ]
        if placed:
            self._connection.executemany(_PUT, placed)
        self.pending.clear()
