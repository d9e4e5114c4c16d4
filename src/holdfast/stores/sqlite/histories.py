"""The history of a run: its entries in commit order, those that are not settled last."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

import apsw

from holdfast.core.model import Entry
from holdfast.stores.sqlite import rows

HISTORY = f"""
    select {rows.ENTRY_COLUMNS}
    from entry
    where run_id = ?
"""  # by the primary key


def history(connection: apsw.Connection, run_id: str) -> tuple[Entry, ...]:
    # Sorted here: SQLite would set up a sorter for each of the hundreds of runs of one claim.
    found = map(rows.entry_of, connection.execute(HISTORY, (run_id,)))
    return tuple(sorted(found, key=_commit_order))


def _commit_order(entry: Entry) -> tuple[bool, int, str]:
    return not entry.is_settled, entry.position, entry.location
