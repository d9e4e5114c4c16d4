"""The transaction: what one write to the database works on.

Its parts are the nouns of the store, and the operations see them as a unit of work. Runs, waits, entries and facts are
gathered, and written in bulk before the next read of them, or at the end. It never begins or ends a transaction
of SQLite itself, and no part outlives the transaction it was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import apsw

from holdfast.core.clock import Clock
from holdfast.core.hint import News
from holdfast.stores.sqlite.audits import SqliteAudit
from holdfast.stores.sqlite.dead_letters import SqliteDeadLetters
from holdfast.stores.sqlite.events import SqliteEvents
from holdfast.stores.sqlite.families import SqliteFamilies
from holdfast.stores.sqlite.histories import SqliteHistories
from holdfast.stores.sqlite.housekeeping import SqliteHousekeeping
from holdfast.stores.sqlite.inboxes import SqliteInboxes
from holdfast.stores.sqlite.limits import SqliteLimits
from holdfast.stores.sqlite.rows import Row
from holdfast.stores.sqlite.runs import SqliteRuns
from holdfast.stores.sqlite.schedules import SqliteSchedules
from holdfast.stores.sqlite.transfers import SqliteOrigins
from holdfast.stores.sqlite.types import SqliteTypes
from holdfast.stores.sqlite.waits import SqliteWaits
from holdfast.stores.sqlite.workers import SqliteWorkers

_P = TypeVar("_P")


class _UnitPart(Generic[_P]):
    """A part that is made when somebody asks for it, and then stands in the transaction itself.

    `functools.cached_property` would take a lock each time, and `__getattr__` would slow down every look-up.
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
    """The parts of the store, what is still to be written, and whom to tell of it afterwards."""

    dead_letters = _UnitPart(SqliteDeadLetters)
    events = _UnitPart(SqliteEvents)
    families = _UnitPart(SqliteFamilies)
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
        """The only row of an answer."""
        found = self.connection.execute(statement, bindings).fetchall()
        return found[0] if found else None

    def all(self, statement: str, *bindings: object) -> list[Row]:
        return self.connection.execute(statement, bindings).fetchall()

    def flush(self) -> None:
        """Write what has gathered. To be called before a statement that reads it by other ways than the parts do."""
        # Most transactions touch few parts, and this is done in each of them: the others are not even called.
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
