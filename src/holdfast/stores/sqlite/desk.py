"""The desk: what one write transaction works on.

It loads each run once, remembers what became of it, and writes rows in bulk when somebody is about to read
them, or at the end. It never begins or ends a transaction, and no desk outlives its own.
"""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core import audit
from holdfast.core.clock import Clock, Micros
from holdfast.core.hint import News
from holdfast.core.model import Arrival, AuditFact, Entry, Fence, Run, Topic, TypeRule, Wait
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.rows import Row

_LOAD = f"""
    select {rows.RUN_COLUMNS}
    from run
    where id = ?
"""  # by the primary key

# Of many runs in one statement with one row as its answer: a thread lets go of the interpreter with each row it asks
# for, and beside a busy event loop waits up to milliseconds until it has it back.
_FENCES = """
    select json_group_array(json_array(run.id, run.token, run.worker, run.arrivals, run.is_pausing))
    from json_each(?) as wanted
    cross join run on run.id = wanted.value
"""  # by the primary key

_INSERT_RUN = f"""
    insert into run ({rows.RUN_COLUMNS})
    values ({rows.placed(rows.RUN_COLUMNS)})
"""

_INSERT_INTENT = """
    insert into intent (run_id, payload, tags, options, continued)
    values (?, ?, ?, ?, ?)
"""

_INSERT_TAG = """
    insert into tag (name, value, created_at, run_id)
    values (?, ?, ?, ?)
"""

_UPDATE_RUN = """
    update run
    set state = ?, ready_at = ?, worker = ?, token = ?, claim_id = ?, crashes = ?, arrivals = ?, attempt = ?,
        generation = ?, updated_at = ?, first_claimed_at = ?, finished_at = ?, python = ?, result = ?, error = ?,
        rollback = ?, is_pausing = ?, suspended_at = ?, parent_location = ?, start_at = ?, slots = ?, deleted_at = ?,
        purge_at = ?
    where id = ?
"""  # by the primary key

_UPDATE_COUNTS = """
    update run
    set crashes = ?, arrivals = ?
    where id = ?
"""  # by the primary key; touches no index

_ENTRY = f"""
    select {rows.ENTRY_COLUMNS}
    from entry
    where run_id = ?
      and location = ?
"""  # by the primary key

# `rules.supersedes` in the words of SQL: what is settled never changes again.
_RECORD = f"""
    insert into entry (run_id, {rows.ENTRY_COLUMNS}, token)
    values (?, {rows.placed(rows.ENTRY_COLUMNS)}, ?)
    on conflict (run_id, location) do update
    set kind = excluded.kind, state = excluded.state, position = excluded.position, attempts = excluded.attempts,
        result = excluded.result, error = excluded.error, started_at = excluded.started_at,
        finished_at = excluded.finished_at, retry_at = excluded.retry_at, ref = excluded.ref, since = excluded.since,
        has_undo = excluded.has_undo, token = excluded.token
    where entry.position = 0
      and (excluded.position > 0 or excluded.attempts > entry.attempts)
"""

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

_WAITS = f"""
    select {rows.WAIT_COLUMNS}
    from wait
    where run_id = ?
    order by place
"""  # by the primary key

_DROP_WAITS = """
    delete from wait
    where run_id = ?
"""  # by the primary key

_WAIT = f"""
    insert into wait (run_id, place, {rows.WAIT_COLUMNS}, topic)
    values (?, ?, {rows.placed(rows.WAIT_COLUMNS)}, ?)
"""

_DROP_HISTORY = """
    delete from entry
    where run_id = ?
"""  # by the primary key

# A scope's own entry and everything below it: `0` is the character after `/`.
_PRUNE = """
    delete from entry
    where run_id = ?1
      and (location = ?2 or (location > ?2 || '/' and location < ?2 || '0'))
      and has_undo = 0
"""  # by the primary key

_HAS_UNDO = """
    select 1
    from entry indexed by entry_undo
    where run_id = ?
      and has_undo = 1
    limit 1
"""

_LAST_POSITION = """
    select max(position)
    from entry
    where run_id = ?
"""  # by the primary key

_RULED = f"""
    select {rows.TYPE_COLUMNS}
    from type
    where is_enabled = 0
       or concurrency is not null
       or per_key is not null
       or rate is not null
"""  # reads all of them: there are few

_NEWER = f"""
    select {rows.ARRIVAL_COLUMNS}
    from inbox
    where run_id = ?
      and number > ?
    order by number
"""  # by the primary key

_decode_fences = msgspec.json.Decoder(list[Fence], strict=False).decode


class Desk:
    """The runs one transaction has loaded, what it is about to write, and whom to tell of it afterwards."""

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self.connection = connection
        self.now = clock.now
        self.news = News()
        self.topics: dict[str, Topic] | None = None
        self.types: dict[str, TypeRule] | None = None  # as `ruled_types` has read them
        self.after_commit: list[Callable[[], None]] = []
        self.closing: list[str] = []  # while a run is being closed: who is cancelled with it, and with them
        self._runs: dict[str, Run] = {}
        self._stored: dict[str, Run] = {}
        self._waits: dict[str, Sequence[Wait]] = {}
        self._entries: list[Row] = []
        self._facts: list[Row] = []
        self._trims: set[str] = set()

    # Reading

    def one(self, statement: str, *bindings: object) -> Row | None:
        """The only row of an answer."""
        found = self.connection.execute(statement, bindings).fetchall()
        return found[0] if found else None

    def all(self, statement: str, *bindings: object) -> list[Row]:
        return self.connection.execute(statement, bindings).fetchall()

    def run(self, run_id: str) -> Run | None:
        """A run as this transaction has it, without its payload and tags."""
        known = self._runs.get(run_id)
        if known is not None:
            return known
        row = self.connection.execute(_LOAD, (run_id,)).get
        return self.loaded(rows.run_of(row)) if row is not None else None

    def loaded(self, run: Run) -> Run:
        """Keep a run that another statement has read."""
        self._runs[run.id] = self._stored[run.id] = run
        return run

    def completed(self, run: Run) -> Run:
        """A run that another statement has read whole, as this transaction has it."""
        known = self._runs.get(run.id)
        if known is None:
            return self.loaded(run)
        whole = replace(known, payload=run.payload, tags=run.tags, options=run.options, continued=run.continued)
        if known is self._stored[run.id]:
            return self.loaded(whole)
        self.put(whole)
        return whole

    def fences(self, run_ids: Sequence[str]) -> dict[str, Fence]:
        """What of each run is enough for a plain checkpoint, by id. Only true until something else is written."""
        if not run_ids:
            return {}
        found = _decode_fences(self.connection.execute(_FENCES, (rows.json_of(run_ids),)).get)
        fences = {fence.id: fence for fence in found}
        for run_id in self._runs.keys() & fences.keys():
            fences[run_id] = self._runs[run_id].fence
        return fences

    def waits(self, run_id: str) -> Sequence[Wait]:
        """What a run waits for, in the order in which it named it."""
        known = self._waits.get(run_id)
        return known if known is not None else [rows.wait_of(row) for row in self.all(_WAITS, run_id)]

    def newer(self, run: Run | Fence, seen: int) -> tuple[Arrival, ...]:
        """What waits in a run's inbox beyond the number `seen`."""
        if run.arrivals <= seen:
            return ()
        return tuple(map(rows.arrival_of, self.connection.execute(_NEWER, (run.id, seen))))

    def ruled_types(self) -> dict[str, TypeRule]:
        """The types that are switched off or limited, read once in a transaction. With all others anything goes."""
        if self.types is None:
            self.types = {rule.name: rule for rule in map(rows.type_of, self.all(_RULED))}
        return self.types

    def entry(self, run_id: str, location: str) -> Entry | None:
        """What is recorded at a location."""
        self._flush_entries()
        row = self.one(_ENTRY, run_id, location)
        return rows.entry_of(row) if row is not None else None

    def has_undo(self, run_id: str) -> bool:
        """Whether a run has done something that can be undone."""
        self._flush_entries()
        return self.one(_HAS_UNDO, run_id) is not None

    def last_position(self, run_id: str) -> int:
        """The place of the last entry of a run in commit order."""
        self._flush_entries()
        found = self.one(_LAST_POSITION, run_id)
        return found[0] or 0 if found else 0

    # Writing

    def add(self, runs: Sequence[Run]) -> None:
        """Insert new runs with what they were started with."""
        insert = self.connection.executemany
        insert(_INSERT_RUN, map(rows.run_row, runs))
        insert(_INSERT_INTENT, map(rows.intent_row, runs))
        if tags := [(name, value, run.created_at, run.id) for run in runs for name, value in run.tags.items()]:
            insert(_INSERT_TAG, tags)

    def put(self, run: Run) -> None:
        """Give a run that was loaded here its next value."""
        self._runs[run.id] = run

    def record(self, run_id: str, token: int, entry: Entry, now: Micros) -> None:
        """Write an entry unless a settled one, or one of a later attempt, stands at its location."""
        fact = audit.of_entry(run_id, entry, now)
        row = rows.entry_row(run_id, token, entry)
        if fact is None:
            self._entries.append(row)
            return
        self._flush_entries()  # the earlier ones first: one of them may be of the same location
        self.connection.execute(_RECORD, row)
        if self.connection.changes():
            self.note(fact)

    def drop_history(self, run_id: str) -> None:
        """Forget all entries of a run."""
        self._flush_entries()
        self.connection.execute(_DROP_HISTORY, (run_id,))

    def prune(self, run_id: str, scope: str) -> None:
        """Forget what happened in a scope, but for what would have to be undone."""
        self._flush_entries()
        self.connection.execute(_PRUNE, (run_id, scope))

    def wait(self, run_id: str, waits: Sequence[Wait]) -> None:
        """Replace what a run waits for."""
        self._waits[run_id] = waits

    def note(self, fact: AuditFact | None) -> None:
        if fact is not None:
            self._facts.append(rows.fact_row(fact))

    def note_once(self, fact: AuditFact) -> None:
        """Note a fact unless it stands there already, from an earlier attempt at the same checkpoint."""
        run_id, event, _, data = row = rows.fact_row(fact)
        is_pending = any((run_id, event, data) == (known[0], known[1], known[3]) for known in self._facts)
        if not is_pending and self.one(_IS_NOTED, run_id, event, data) is None:
            self._facts.append(row)

    def note_often(self, fact: AuditFact, count: int) -> None:
        """Note what a run does again and again, of which the last ones suffice; now and then clear the rest away."""
        self._facts.append(rows.fact_row(fact))
        self.trim_now_and_then(fact.run_id, count)

    def trim_now_and_then(self, run_id: str, count: int) -> None:
        """Clear old facts of a run away, if it is time for that after so many."""
        if count % audit.TRIM_EVERY == 0:
            self._trims.add(run_id)

    def forget(self, run_ids: Iterable[str]) -> None:
        """Drop runs that another statement has changed; they are loaded anew."""
        for run_id in run_ids:
            self._runs.pop(run_id, None)
            self._stored.pop(run_id, None)

    def forget_all(self) -> None:
        """Drop every run, after a statement that may have changed any of them. To be called when all is flushed."""
        self._runs.clear()
        self._stored.clear()

    def flush(self) -> None:
        """Write what has gathered. To be called before a statement that reads it by other ways than this desk."""
        self._flush_runs()
        self.flush_waits()
        self._flush_entries()
        if self._facts:
            self.connection.executemany(_NOTE, self._facts)
            self._facts.clear()
        for run_id in self._trims:
            self.connection.execute(_TRIM, (run_id,))
        self._trims.clear()

    def _flush_runs(self) -> None:
        moved: list[Row] = []
        counted: list[Row] = []
        for run_id, run in self._runs.items():
            stored = self._stored[run_id]
            if run is stored:
                continue
            self._stored[run_id] = run
            if _is_only_counted(stored, run):
                counted.append((run.crashes, run.arrivals, run_id))
            else:
                moved.append(_moved_row(run))
        if moved:
            self.connection.executemany(_UPDATE_RUN, moved)
        if counted:
            self.connection.executemany(_UPDATE_COUNTS, counted)

    def flush_waits(self) -> None:
        """Write the waits that have gathered. To be called before a statement that looks for them by topic."""
        if not self._waits:
            return
        self.connection.executemany(_DROP_WAITS, [(run_id,) for run_id in self._waits])
        placed = [
            rows.wait_row(run_id, place, wait)
            for run_id, waits in self._waits.items()
            for place, wait in enumerate(waits)
        ]
        if placed:
            self.connection.executemany(_WAIT, placed)
        self._waits.clear()

    def _flush_entries(self) -> None:
        if self._entries:
            self.connection.executemany(_RECORD, self._entries)
            self._entries.clear()


def _is_only_counted(before: Run, after: Run) -> bool:
    """Whether nothing but the counts of arrivals and crashes differs, as when something reaches a held run."""
    return (
        before.state is after.state
        and before.token == after.token
        and before.worker == after.worker
        and before.ready_at == after.ready_at
        and before.updated_at == after.updated_at
        and before.is_pausing == after.is_pausing
        and before.parent_location == after.parent_location
        and before.slots == after.slots
        and before.deleted_at == after.deleted_at
        and before.purge_at == after.purge_at
    )


def _moved_row(run: Run) -> Row:
    return (
        run.state,
        run.ready_at,
        run.worker,
        run.token,
        run.claim_id,
        run.crashes,
        run.arrivals,
        run.attempt,
        run.generation,
        run.updated_at,
        run.first_claimed_at,
        run.finished_at,
        run.python,
        run.result,
        rows.error_text(run.error),
        run.rollback,
        run.is_pausing,
        run.suspended_at,
        run.parent_location,
        run.start_at,
        rows.slots_text(run.slots),
        run.deleted_at,
        run.purge_at,
        run.id,
    )
