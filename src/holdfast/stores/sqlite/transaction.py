"""The transaction: the unit of work of SQLite, on which the operations run.

Each part of it is one noun of the store. Runs, waits, entries and audit facts are collected, and written in bulk before
the next read of them, or at the end. This class neither begins nor commits a transaction of SQLite. No part outlives
the transaction that it was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import apsw

from holdfast.core.clock import Clock
from holdfast.core.hint import News
from holdfast.stores.sqlite.catalogue import (
    SqliteDeadLetters,
    SqliteFlows,
    SqliteOrigins,
    SqliteSchedules,
    SqliteTypes,
    SqliteWorkers,
)
from holdfast.stores.sqlite.events import SqliteEvents
from holdfast.stores.sqlite.histories import SqliteAudit, SqliteHistories
from holdfast.stores.sqlite.inboxes import SqliteInboxes
from holdfast.stores.sqlite.limits import SqliteLimits
from holdfast.stores.sqlite.pruning import SqliteHousekeeping
from holdfast.stores.sqlite.rows import Row
from holdfast.stores.sqlite.runs import SqliteFamilies, SqliteRuns, SqliteWaits

_P = TypeVar("_P")


class _UnitPart(Generic[_P]):
    """A descriptor that makes a part on first access and stores it in the transaction's `__dict__`.

    `functools.cached_property` takes a lock on first access (before Python 3.12), and `__getattr__` would slow down
    every lookup.
    """

    def __init__(self, make: Callable[[Transaction], _P]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type[Transaction], name: str) -> None:
        self._name = name

    def __get__(self, transaction: Transaction, owner: type[Transaction]) -> _P:
        part = transaction.__dict__[self._name] = self._make(transaction)
        return part


class Transaction:
    """The parts of the store, the pending writes, and the hints to send after the commit."""

    dead_letters = _UnitPart(SqliteDeadLetters)
    events = _UnitPart(SqliteEvents)
    families = _UnitPart(SqliteFamilies)
    flows = _UnitPart(SqliteFlows)
    housekeeping = _UnitPart(SqliteHousekeeping)
    limits = _UnitPart(SqliteLimits)
    origins = _UnitPart(SqliteOrigins)
    schedules = _UnitPart(SqliteSchedules)
    types = _UnitPart(SqliteTypes)
    workers = _UnitPart(SqliteWorkers)

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self.connection = connection
        self.now = clock.now
        self.news = News()
        self.closing: list[str] = []
        self.before_commit: list[Callable[[], None]] = []
        self.after_commit: list[Callable[[], None]] = []
        self.runs = SqliteRuns(self)
        self.waits = SqliteWaits(self)
        self.histories = SqliteHistories(self)
        self.inboxes = SqliteInboxes(self)
        self.audit = SqliteAudit(self)

    def one(self, statement: str, *bindings: object) -> Row | None:
        """Return the only row of a statement, or None."""
        found = self.connection.execute(statement, bindings).fetchall()
        return found[0] if found else None

    def all(self, statement: str, *bindings: object) -> list[Row]:
        return self.connection.execute(statement, bindings).fetchall()

    def flush(self) -> None:
        """Write all pending changes. Call it before a statement that reads them without the parts."""
        # Every transaction flushes, and most touch few parts: checking here saves the calls to the others.
        if self.runs.known:
            self.runs.flush()
        if self.waits.pending:
            self.waits.flush()
        if self.histories.pending:
            self.histories.flush()
        if self.audit.pending or self.audit.worn:
            self.audit.flush()
        for write in self.before_commit:
            write()
