"""Rows that cannot be decoded: read column by column, and blocked where a claim comes to them.

SQLite keeps any value in any column, also text that is no UTF-8, if somebody edits the file.
"""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core import unreadable as core_unreadable
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, Unreadable
from holdfast.core.model import AuditFact, Run
from holdfast.core.unreadable import reason_of, salvaged
from holdfast.stores.operations.unit_of_work import OddRow
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.histories import history
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

FAILURES = (OddRow, Unreadable, UnicodeDecodeError, msgspec.MsgspecError, TypeError, RecursionError)
"""What is raised for a row that cannot be decoded, or not be compared with others."""

_NAMES = (*rows.RUN_COLUMNS.split(", "), "payload", "tags", "options", "continued")
_COUNTS = ("priority", "token", "crashes", "arrivals", "attempt", "generation", "retention")
_INTEGERS = tuple(place for place, name in enumerate(_NAMES) if name.endswith("_at") or name in _COUNTS)


def _as_bytes(column: str) -> str:
    return f"case typeof({column}) when 'text' then cast({column} as blob) else {column} end"


RAW_RUN = ", ".join(_as_bytes(column) for column in rows.WHOLE_RUN.split(", "))
"""What is read of `run` joined with `intent` if some of it is no text: text comes as bytes."""

_DUE = f"""
    select run.rowid, {RAW_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.type in (select value from json_each(?))
      and run.ready_at is not null
      and (run.ready_at <= ? or typeof(run.ready_at) <> 'integer')
"""  # reads all that are due

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


def salvage(row: Row) -> tuple[Run, str]:
    """The run in a row of `WHOLE_RUN` or `RAW_RUN`, with what of it can be decoded, and why the rest cannot."""
    columns: dict[str, Any] = dict(zip(_NAMES, map(_text_of, row), strict=True))
    columns["is_pausing"] = bool(columns["is_pausing"])
    return salvaged(columns)


def has_odd_types(row: Row) -> bool:
    """Whether a row of `WHOLE_RUN` has something else where numbers stand."""
    return any(row[place].__class__ is not int and row[place] is not None for place in _INTEGERS)


def block_due(unit: Transaction, types: Sequence[str]) -> int:
    """Block those of the due runs of some types that no worker could read; how many were."""
    now = unit.now()
    unit.flush()
    blocked = 0
    for rowid, *row in unit.all(_DUE, rows.json_of(types), now):
        if (why := _flaw(unit, row)) is not None:
            _block(unit, rowid, _text_of(row[0]), why, now)
            blocked += 1
    unit.runs.forget_all()
    return blocked


def _flaw(unit: Transaction, row: Sequence[Any]) -> str | None:
    """Why a run cannot be read by the worker that would claim it."""
    run, why = salvage(tuple(row))
    if why:
        return why
    try:
        history(unit.connection, run.id)
        unit.inboxes.newer(run, 0)
    except FAILURES as error:
        return reason_of(error)
    return None


def _block(unit: Transaction, rowid: int, run_id: Any, why: str, now: Micros) -> None:
    error = ErrorRecord(type=Unreadable.__name__, message=why)
    unit.connection.execute(_BLOCK, (rows.json_of(error), now, rowid))
    if isinstance(run_id, str):
        unit.audit.note(AuditFact(run_id=run_id, event="blocked", at=now, data={"error": str(error)[:500]}))


def _text_of(value: Any) -> Any:
    """Text that came as bytes; bytes if it is none."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
