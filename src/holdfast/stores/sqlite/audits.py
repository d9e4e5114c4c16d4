"""Audit facts as rows, collected during a transaction and written in bulk."""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core import audit
from holdfast.core.model import AuditFact
from holdfast.stores.sqlite import reads, rows
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_NOTE = f"""
    insert into audit ({rows.AUDIT_COLUMNS})
    values ({rows.placed(rows.AUDIT_COLUMNS)})
"""

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
        return reads.audit(self._connection, run_id)

    def flush(self) -> None:
        """Write the pending facts, and trim the old routine facts of runs that are due for it."""
        if self.pending:
            self._connection.executemany(_NOTE, self.pending)
            self.pending.clear()
        for run_id in self.worn:
            self._connection.execute(_TRIM, (run_id,))
        self.worn.clear()
