"""The transaction: the unit of work of SQLite, with the runs, waits and children that it reads and writes.

Each part of it is one noun of the store. Runs, waits, entries and audit facts are collected, and written in bulk before
the next read of them, or at the end. No part outlives the transaction that it was made for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Generic, TypeVar

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Clock, Micros
from holdfast.core.model import Fence, Run, RunOptions, Wait, group_of
from holdfast.core.news import News
from holdfast.stores.operations.unit_of_work import OddRow
from holdfast.stores.sqlite import rows
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

_LOAD = f"select {rows.RUN_COLUMNS} from run where id = ?"  # by the primary key

_LOAD_SEVERAL = f"""
    select {rows.RUN_COLUMNS}
    from run
    where id in (select value from json_each(?))
"""  # by the primary key

BY_ID = f"""
    select {rows.WHOLE_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.id = ?
"""  # by the primary keys

_OPTIONS = "select options from intent where run_id = ?"  # by the primary key

# All fences in one row: a thread releases the GIL with each row that it fetches, and next to a busy event loop it can
# wait milliseconds to get it back.
_FENCES = """
    select json_group_array(json_array(run.id, run.token, run.worker, run.arrivals, run.stop))
    from json_each(?) as wanted
    cross join run on run.id = wanted.value
"""  # by the primary key

_EXISTING = "select id from run where id in (select value from json_each(?))"  # by the primary key

_HOLDERS = f"""
    select {rows.WHOLE_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.key in (select value from json_each(?))
"""  # run_key

BY_KEY = "select id from run where key = ?"  # run_key
_SET_KEY = "update run set key = ? where id = ?"  # by the primary key
_INSERT_RUN = rows.insertion("run", rows.RUN_COLUMNS)
_INSERT_INTENT = rows.insertion("intent", f"run_id, {rows.INTENT_COLUMNS}")
_INSERT_TAG = rows.insertion("tag", "name, value, created_at, run_id")

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

_CONTINUE = "update intent set continued = ? where run_id = ?"  # by the primary key
_PROLONG = "update run set ready_at = ? where id = ?"  # by the primary key
_SET_VALUE = rows.upsert("value", "run_id, name, value", "run_id", "name")

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
        return self.register(rows.run_of(row)) if row is not None else None

    def whole(self, run_id: str) -> Run | None:
        row = self._transaction.one(BY_ID, run_id)
        return None if row is None else self.complete(rows.whole_run_of(row))

    def options(self, run: Run) -> RunOptions:
        return rows.options_of(self._connection.execute(_OPTIONS, (run.id,)).get)

    def register(self, run: Run) -> Run:
        """Register a run that another statement has read."""
        self.known[run.id] = self._stored[run.id] = run
        return run

    def load(self, run_ids: Sequence[str]) -> None:
        """Load several runs with one statement. A single run costs the same with `get`."""
        if len(run_ids) > 1:
            for row in self._transaction.all(_LOAD_SEVERAL, rows.json_of(run_ids)):
                run = rows.run_of(row)
                if run.id not in self.known:
                    self.register(run)

    def complete(self, run: Run) -> Run:
        """Combine a run that another statement has read whole with this transaction's changes of it."""
        known = self.known.get(run.id)
        if known is None:
            return self.register(run)
        whole = replace(known, **rows.started_with(run))
        if known is self._stored[run.id]:
            return self.register(whole)
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


# Waits

_log = logging.getLogger("holdfast.store")

_WAITS = f"""
    select {rows.WAIT_COLUMNS}
    from wait
    where run_id = ?
    order by place
"""  # by the primary key

_DROP_WAITS = "delete from wait where run_id = ?"  # by the primary key
_PUT_WAIT = rows.insertion("wait", f"run_id, place, topic, {rows.WAIT_COLUMNS}")

FIRST_WAIT = """
    select run_id
    from wait indexed by wait_slot
    where topic = ?
      and kind = 'slot'
      and location = ?
    order by after, since, run_id
    limit 1
"""

FIRST_WAIT_AT_LEVEL = f"""
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
        run_id: str | None = self._connection.execute(FIRST_WAIT, (queue, location)).get
        return run_id

    def first_at(self, queue: str, level: int) -> str | None:
        self.flush()
        run_id: str | None = self._connection.execute(FIRST_WAIT_AT_LEVEL, (queue, level)).get
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

    def flush(self) -> None:
        """Write the pending waits. Call it before a statement that searches waits by topic."""
        if not self.pending:
            return
        self._connection.executemany(_DROP_WAITS, [(run_id,) for run_id in self.pending])
        placed = [
            rows.wait_row(run_id, place, wait)
            for run_id, waits in self.pending.items()
            for place, wait in enumerate(waits)
        ]
        if placed:
            self._connection.executemany(_PUT_WAIT, placed)
        self.pending.clear()


# Children

_TO_CANCEL = """
    select id
    from run
    where parent_id = ?
      and on_close = 'cancel'
      and finished_at is null
    order by created_at, id
"""  # run_parent, in its order

_DETACH = """
    update run
    set parent_location = null
    where parent_id = ?
      and finished_at is null
"""  # run_parent

_PARKED = """
    select run.id
    from run
    join wait on wait.run_id = run.id
    where run.parent_id = ?
      and run.finished_at is null
      and wait.location = ?
    order by run.created_at, run.id
"""  # run_parent, in its order; wait by the primary key

_SEATED = """
    select run.parent_location
    from run
    left join wait on wait.run_id = run.id and wait.location = ?
    where run.parent_id = ?
      and run.finished_at is null
      and wait.run_id is null
"""  # run_parent; wait by the primary key


class SqliteFamilies:
    """Children, by their parent."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def to_cancel(self, parent_id: str) -> Sequence[str]:
        # No flush: a child with an unwritten change may have ended meanwhile, and the caller checks that anyway.
        return [child_id for (child_id,) in self._transaction.all(_TO_CANCEL, parent_id)]

    def detach(self, parent_id: str) -> None:
        self._transaction.flush()
        self._transaction.connection.execute(_DETACH, (parent_id,))
        self._transaction.runs.forget_all()

    def parked(self, parent_id: str) -> Sequence[str]:
        self._transaction.flush()
        return [child_id for (child_id,) in self._transaction.all(_PARKED, parent_id, rules.SLOT_LOCATION)]

    def seated(self, parent_id: str | None, group: str | None) -> int:
        self._transaction.flush()
        seated: list[Row] = self._transaction.all(_SEATED, rules.SLOT_LOCATION, parent_id)
        return sum(group_of(parent_id, location) == group for (location,) in seated)


# The whole

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
    """The parts of the store, the pending writes, and the hints to send after the commit.

    It neither begins nor commits a transaction of SQLite.
    """

    dead_letters = _UnitPart(SqliteDeadLetters)
    events = _UnitPart(SqliteEvents)
    families = _UnitPart(SqliteFamilies)
    flows = _UnitPart(SqliteFlows)
    housekeeping = _UnitPart(SqliteHousekeeping)
    inboxes = _UnitPart(SqliteInboxes)
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
