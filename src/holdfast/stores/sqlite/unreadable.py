"""Unreadable rows: decode them column by column for reads, and block their runs when a claim meets them.

SQLite accepts any value in any column, even text that is not UTF-8, so a file edited by hand can hold such rows.
"""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core import unreadable as core_unreadable
from holdfast.core.columns import columns_of
from holdfast.core.errors import ErrorRecord, Unreadable
from holdfast.core.model import AuditFact, Run
from holdfast.core.unreadable import reason_of
from holdfast.stores.operations.unit_of_work import OddRow
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.histories import history
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

FAILURES = (OddRow, Unreadable, UnicodeDecodeError, msgspec.MsgspecError, TypeError, RecursionError)
"""The errors raised for a row that cannot be decoded, or cannot be compared with other rows."""

_COLUMNS = columns_of(Run)
_FLAGS = [column.field for column in _COLUMNS.values() if column.scalar is bool]
_INTEGERS = [place for place, column in enumerate(_COLUMNS.values()) if column.scalar is int]


def _as_bytes(column: str) -> str:
    return f"case typeof({column}) when 'text' then cast({column} as blob) else {column} end"


RAW_RUN = ", ".join(_as_bytes(column) for column in rows.WHOLE_RUN.split(", "))
"""`WHOLE_RUN` with text as bytes, for rows whose text is not UTF-8."""

_DUE = f"""
    select run.rowid, {RAW_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.type in (select value from json_each(?))
      and run.ready_at is not null
      and (run.ready_at <= ? or typeof(run.ready_at) <> 'integer')
"""  # reads all due runs of the types

_BLOCK = """
    update run
    set state = 'blocked',
        token = case typeof(token) when 'integer' then token + 1 else 1 end,
        worker = null,
        claim_id = null,
        ready_at = null,
        error = ?,
        updated_at = ?
    where rowid = ?
"""  # by the primary key


readable = partial(core_unreadable.readable, failures=FAILURES)


def marked(row: Row) -> tuple[Run, str]:
    """Decode what can be decoded of a row of `WHOLE_RUN` or `RAW_RUN`, and return why the rest cannot."""
    columns: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    return core_unreadable.marked(columns | {flag: bool(columns[flag]) for flag in _FLAGS})


def has_odd_types(row: Row) -> bool:
    """Return True if a row of `WHOLE_RUN` has a value that is not an integer in an integer column."""
    return any(row[place].__class__ is not int and row[place] is not None for place in _INTEGERS)


def block_due(unit: Transaction, types: Sequence[str]) -> int:
    """Block the due runs of the given types that no worker can read. Returns their number."""
    now = unit.now()
    unit.flush()
    blocked = 0
    for rowid, *row in unit.all(_DUE, rows.json_of(types), now):
        run, why = marked(tuple(row))
        try:
            history(unit.connection, run.id)
            unit.inboxes.newer(run, 0)
        except FAILURES as error:
            why = why or reason_of(error)
        if why:
            record = ErrorRecord(type=Unreadable.__name__, message=why)
            unit.connection.execute(_BLOCK, (rows.json_of(record), now, rowid))
            unit.audit.note(AuditFact(run_id=run.id, event="blocked", at=now, data={"error": str(record)[:500]}))
            blocked += 1
    unit.runs.forget_all()
    return blocked
