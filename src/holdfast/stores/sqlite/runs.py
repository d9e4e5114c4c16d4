"""Runs as rows: loaded once per transaction, and written in bulk before a statement reads them."""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.model import Fence, Run, RunOptions
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_LOAD = f"""
    select {rows.RUN_COLUMNS}
    from run
    where id = ?
"""  # by the primary key

BY_ID = f"""
    select {rows.WHOLE_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.id = ?
"""  # by the primary keys

_OPTIONS = """
    select options
    from intent
    where run_id = ?
"""  # by the primary key

# All fences in one row: a thread releases the GIL with each row that it fetches, and next to a busy event loop it can
# wait milliseconds to get it back.
_FENCES = """
    select json_group_array(json_array(run.id, run.token, run.worker, run.arrivals, run.stop))
    from json_each(?) as wanted
    cross join run on run.id = wanted.value
"""  # by the primary key

_EXISTING = """
    select id
    from run
    where id in (select value from json_each(?))
"""  # by the primary key

_HOLDERS = f"""
    select {rows.WHOLE_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.key in (select value from json_each(?))
"""  # run_key

BY_KEY = """
    select id
    from run
    where key = ?
"""  # run_key

_SET_KEY = """
    update run
    set key = ?
    where id = ?
"""  # by the primary key

_INSERT_RUN = f"""
    insert into run ({rows.RUN_COLUMNS})
    values ({rows.placed(rows.RUN_COLUMNS)})
"""

_INSERT_INTENT = f"""
    insert into intent (run_id, {rows.INTENT_COLUMNS})
    values (?, {rows.placed(rows.INTENT_COLUMNS)})
"""

_INSERT_TAG = """
    insert into tag (name, value, created_at, run_id)
    values (?, ?, ?, ?)
"""

_UPDATE_RUN = f"""
    update run
    set {", ".join(f"{field} = ?" for field in rows.MOVED)}
    where id = ?
"""  # by the primary key

_UPDATE_COUNTS = """
    update run
    set crashes = ?, arrivals = ?
    where id = ?
"""  # by the primary key; touches no index

_CONTINUE = """
    update intent
    set continued = ?
    where run_id = ?
"""  # by the primary key

_PROLONG = """
    update run
    set ready_at = ?
    where id = ?
"""  # by the primary key

_SET_VALUE = """
    insert into value (run_id, name, value)
    values (?, ?, ?)
    on conflict (run_id, name) do update
    set value = excluded.value
"""

_uncounted = attrgetter(*(field for field in rows.MOVED if field not in ("crashes", "arrivals")))
"""Returns all that an update writes besides the counts. An arrival at a held run changes only counts."""

_decode_fences = msgspec.json.Decoder(list[Fence], strict=False).decode


class SqliteRuns:
    """The runs that a transaction has loaded, with their changes."""

    __slots__ = ("_connection", "_stored", "_transaction", "known")

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._connection = transaction.connection
        self.known: dict[str, Run] = {}
        """The loaded runs, with changes that may not be written yet."""
        self._stored: dict[str, Run] = {}

    # Looking up

    def get(self, run_id: str) -> Run | None:
        known = self.known.get(run_id)
        if known is not None:
            return known
        row = self._connection.execute(_LOAD, (run_id,)).get
        return self.loaded(rows.run_of(row)) if row is not None else None

    def whole(self, run_id: str) -> Run | None:
        row = self._transaction.one(BY_ID, run_id)
        return None if row is None else self.completed(rows.whole_run_of(row))

    def options(self, run: Run) -> RunOptions:
        return rows.options_of(self._connection.execute(_OPTIONS, (run.id,)).get)

    def loaded(self, run: Run) -> Run:
        """Register a run that another statement has read."""
        self.known[run.id] = self._stored[run.id] = run
        return run

    def completed(self, run: Run) -> Run:
        """Combine a run that another statement has read whole with this transaction's changes of it."""
        known = self.known.get(run.id)
        if known is None:
            return self.loaded(run)
        whole = replace(known, **rows.started_with(run))
        if known is self._stored[run.id]:
            return self.loaded(whole)
        self.put(whole)
        return whole

    def existing(self, run_ids: Sequence[str]) -> set[str]:
        found: list[Row] = self._transaction.all(_EXISTING, rows.json_of(run_ids))
        return {id for (id,) in found}

    def expect(self, run_ids: Collection[str], *, with_histories: bool = False) -> None:
        """Do nothing: in SQLite, reading runs one by one costs the same as loading them together."""

    def with_key(self, key: str) -> str | None:
        found = self._transaction.one(BY_KEY, key)
        return found[0] if found else None

    def holding(self, keys: Sequence[str]) -> dict[str, Run]:
        self.flush()
        holders = map(rows.whole_run_of, self._transaction.all(_HOLDERS, rows.json_of(keys)))
        return {run.key: run for run in holders if run.key is not None}

    def fences(self, run_ids: Sequence[str]) -> Mapping[str, Run | Fence]:
        """Return the fences of runs, by id: enough for a plain checkpoint. Stale after the next write."""
        if not run_ids:
            return {}
        found = _decode_fences(self._connection.execute(_FENCES, (rows.json_of(run_ids),)).get)
        fences = {fence.id: fence for fence in found}
        for run_id in self.known.keys() & fences.keys():
            fences[run_id] = self.known[run_id].fence
        return fences

    # Writing

    def put(self, run: Run) -> None:
        self.known[run.id] = run

    def add(self, runs: Sequence[Run]) -> None:
        insert = self._connection.executemany
        insert(_INSERT_RUN, map(rows.run_row, runs))
        insert(_INSERT_INTENT, map(rows.intent_row, runs))
        if tags := [(name, value, run.created_at, run.id) for run in runs for name, value in run.tags.items()]:
            insert(_INSERT_TAG, tags)

    def set_key(self, run: Run, key: str | None) -> None:
        self._connection.execute(_SET_KEY, (key, run.id))
        for known in (self.known, self._stored):
            if run.id in known:
                known[run.id] = replace(known[run.id], key=key)

    def prolong(self, run_ids: Sequence[str], until: Micros) -> None:
        self.flush()
        self._connection.executemany(_PROLONG, [(until, run_id) for run_id in run_ids])
        self.forget(run_ids)

    def publish(self, run_id: str, values: Mapping[str, str]) -> None:
        self._connection.executemany(_SET_VALUE, [(run_id, name, value) for name, value in values.items()])

    def forget(self, run_ids: Iterable[str]) -> None:
        """Drop runs that another statement has changed, so that the next `get` loads them again."""
        for run_id in run_ids:
            self.known.pop(run_id, None)
            self._stored.pop(run_id, None)

    def forget_all(self) -> None:
        """Drop every run after a statement that may have changed any of them. Flush first."""
        self.known.clear()
        self._stored.clear()

    def flush(self) -> None:
        """Write the changed runs. Call it before a statement that reads runs without this object."""
        moved: list[Row] = []
        counted: list[Row] = []
        for run_id, run in self.known.items():
            stored = self._stored[run_id]
            if run is stored:
                continue
            self._stored[run_id] = run
            if stored.updated_at == run.updated_at and _uncounted(stored) == _uncounted(run):
                counted.append((run.crashes, run.arrivals, run_id))
            else:
                moved.append(rows.moved_row(run))
                if run.generation > stored.generation:
                    self._connection.execute(_CONTINUE, (run.continued, run_id))
        if moved:
            self._connection.executemany(_UPDATE_RUN, moved)
        if counted:
            self._connection.executemany(_UPDATE_COUNTS, counted)
