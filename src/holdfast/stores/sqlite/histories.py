"""Histories and audits as rows: the entries of runs, and the facts about runs.

Both are collected during a transaction and written in bulk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import apsw

from holdfast.core import audit
from holdfast.core.location import PEOPLE_PREFIX
from holdfast.core.model import AuditFact, Entry
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

HISTORY = f"select {rows.ENTRY_COLUMNS} from entry where run_id = ?"  # by the primary key

# `location.is_for_people` in SQL. The condition is no range, so that the rows of a run are read in one go.
LEASED = f"""
    select {rows.ENTRY_COLUMNS}
    from entry
    where run_id = ?
      and substr(location, 1, 1) <> '{PEOPLE_PREFIX}'
"""  # by the primary key

_ENTRY = f"""
    select {rows.ENTRY_COLUMNS}
    from entry
    where run_id = ?
      and location = ?
"""  # by the primary key

_STORED_COLUMNS = f"run_id, token, {rows.ENTRY_COLUMNS}"

# `rules.supersedes` in SQL: a settled entry never changes again.
_RECORD = f"""
    {rows.upsert("entry", _STORED_COLUMNS, "run_id", "location")}
    where entry.position = 0
      and (excluded.position > 0 or excluded.attempts > entry.attempts)
"""

_PUT = rows.insertion("entry", _STORED_COLUMNS)
_DROP = "delete from entry where run_id = ? and location = ?"  # by the primary key
_CLEAR = "delete from entry where run_id = ?"  # by the primary key

# The entry of a scope and everything below it: `0` is the character after `/`.
_PRUNE = """
    delete from entry
    where run_id = ?1
      and (location = ?2 or (location > ?2 || '/' and location < ?2 || '0'))
      and has_undo = 0
"""  # by the primary key

# `A` is the character after `@`.
_FORGET = """
    delete from entry
    where run_id = ?
      and location >= '@'
      and location < 'A'
      and position > 0
      and position < ?
"""  # by the primary key

_HAS_UNDO = """
    select 1
    from entry indexed by entry_undo
    where run_id = ?
      and has_undo = 1
    limit 1
"""

_LAST_POSITION = "select max(position) from entry where run_id = ?"  # by the primary key


def history(connection: apsw.Connection, run_id: str, statement: str = HISTORY) -> tuple[Entry, ...]:
    """Return the entries of a run in commit order, unsettled entries last."""
    # Sorted in Python: SQLite would set up a sorter for each of the hundreds of runs of one claim.
    found = map(rows.entry_of, connection.execute(statement, (run_id,)))
    return tuple(sorted(found, key=_commit_order))


def entry(connection: apsw.Connection, run_id: str, location: str) -> Entry | None:
    found = connection.execute(_ENTRY, (run_id, location)).fetchall()
    return rows.entry_of(found[0]) if found else None


def _commit_order(entry: Entry) -> tuple[bool, int, str]:
    return not entry.is_settled, entry.position, entry.location


class SqliteHistories:
    """The entries of a transaction: those to be written, and those already stored."""

    __slots__ = ("_connection", "pending")

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection
        self.pending: list[Row] = []
        """Entries not written yet."""

    def entry(self, run_id: str, location: str) -> Entry | None:
        self.flush()
        return entry(self._connection, run_id, location)

    def all(self, run_id: str) -> Sequence[Entry]:
        if self.pending:
            self.flush()
        return history(self._connection, run_id)

    def leased(self, run_id: str) -> Sequence[Entry]:
        if self.pending:
            self.flush()
        return history(self._connection, run_id, LEASED)

    def record(self, run_id: str, token: int, entry: Entry) -> None:
        self.pending.append(rows.entry_row(run_id, token, entry))

    def try_record(self, run_id: str, token: int, entry: Entry) -> bool:
        self.flush()  # earlier entries first: one of them may have the same location
        self._connection.execute(_RECORD, rows.entry_row(run_id, token, entry))
        return self._connection.changes() > 0

    def put(self, run_id: str, token: int, entries: Iterable[Entry]) -> None:
        self.flush()
        self._connection.executemany(_PUT, [rows.entry_row(run_id, token, entry) for entry in entries])

    def drop(self, run_id: str, locations: Iterable[str]) -> None:
        self.flush()
        self._connection.executemany(_DROP, [(run_id, location) for location in locations])

    def clear(self, run_id: str) -> None:
        self.flush()
        self._connection.execute(_CLEAR, (run_id,))

    def prune(self, run_id: str, scope: str) -> None:
        self.flush()
        self._connection.execute(_PRUNE, (run_id, scope))

    def forget(self, run_id: str, before: int) -> None:
        self.flush()
        self._connection.execute(_FORGET, (run_id, before))

    def has_undo(self, run_id: str) -> bool:
        self.flush()
        return self._connection.execute(_HAS_UNDO, (run_id,)).get is not None

    def last_position(self, run_id: str) -> int:
        self.flush()
        return self._connection.execute(_LAST_POSITION, (run_id,)).get or 0

    def flush(self) -> None:
        """Write the pending entries."""
        if self.pending:
            self._connection.executemany(_RECORD, self.pending)
            self.pending.clear()


# The audit

_NOTE = rows.insertion("audit", rows.AUDIT_COLUMNS)

_IS_NOTED = """
    select 1
    from audit
    where run_id = ?
      and event = ?
      and data = ?
    limit 1
"""  # audit_run

_TRIM = f"""
    delete from audit
    where run_id = ?1
      and event in {audit.ROUTINE}
      and number <= (
        select number
        from audit
        where run_id = ?1
          and event in {audit.ROUTINE}
        order by number desc
        limit 1 offset {audit.KEPT}
      )
"""  # audit_run, twice

_HAS_REQUEST = f"""
    select 1
    from audit
    where run_id = ?
      and data ->> '{audit.REQUEST}' = ?
    limit 1
"""  # audit_run

_REQUESTS = f"""
    select {rows.AUDIT_COLUMNS}
    from audit
    where run_id = ?
      and (event = '{audit.KEY_REUSED}' or data ->> '{audit.REQUEST}' is not null)
    order by number
"""  # audit_run


_AUDIT = f"""
    select {rows.AUDIT_COLUMNS}
    from audit
    where run_id = ?
    order by number
"""  # audit_run


def facts(connection: apsw.Connection, run_id: str) -> tuple[AuditFact, ...]:
    """Return the audit of a run. Omits old routine facts, even those that are not trimmed yet."""
    return audit.kept(map(rows.fact_of, connection.execute(_AUDIT, (run_id,))))


class SqliteAudit:
    """The audit of a transaction: facts to be written, and facts already stored."""

    __slots__ = ("_connection", "pending", "worn")

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection
        self.pending: list[Row] = []
        """Facts not written yet."""
        self.worn: set[str] = set()
        """Runs whose old routine facts the next flush trims."""

    def note(self, fact: AuditFact | None) -> None:
        if fact is not None:
            self.pending.append(rows.fact_row(fact))

    def note_often(self, fact: AuditFact, count: int) -> None:
        self.pending.append(rows.fact_row(fact))
        if count % audit.TRIM_EVERY == 0:
            self.worn.add(fact.run_id)

    def note_once(self, fact: AuditFact, count: int = 1) -> None:
        run_id, event, _, data = row = rows.fact_row(fact)
        is_pending = any((run_id, event, data) == (known[0], known[1], known[3]) for known in self.pending)
        if not is_pending and self._connection.execute(_IS_NOTED, (run_id, event, data)).get is None:
            self.pending.append(row)
        if count % audit.TRIM_EVERY == 0:
            self.worn.add(run_id)

    def has_request(self, run_id: str, request_id: str) -> bool:
        self.flush()
        return self._connection.execute(_HAS_REQUEST, (run_id, request_id)).get is not None

    def requests(self, run_id: str) -> Sequence[AuditFact]:
        self.flush()
        return [rows.fact_of(row) for row in self._connection.execute(_REQUESTS, (run_id,))]

    def all(self, run_id: str) -> Sequence[AuditFact]:
        self.flush()
        return facts(self._connection, run_id)

    def flush(self) -> None:
        """Write the pending facts, and trim the old routine facts of runs that are due for it."""
        if self.pending:
            self._connection.executemany(_NOTE, self.pending)
            self.pending.clear()
        for run_id in self.worn:
            self._connection.execute(_TRIM, (run_id,))
        self.worn.clear()
