"""The memory store as callers see it. It takes the lock and delivers hints, and decides nothing.

Each operation is atomic because it never awaits. The lock is for the heartbeat, which renews leases from its own
thread, and for other event loops, each in its own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Created, LeaseRequest, Verdicts
from holdfast.core.clock import Clock, Micros, SystemClock
from holdfast.core.commands import Command
from holdfast.core.model import AuditFact, Entry, Holding, Intent, Schedule, WorkerRecord
from holdfast.core.news import Hint, News
from holdfast.core.ports import Finding, Pruned, Report, SchemaStatus
from holdfast.core.questions import Awaited, Details, Listing, Query, Stat
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored
from holdfast.stores.loops import Listeners
from holdfast.stores.memory import claims, pruning, reads
from holdfast.stores.memory.state import State
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import checkpoints as checkpoint_rules
from holdfast.stores.operations import commands, leases, schedules, starts, transfers

A = TypeVar("A")


class MemoryStore:
    """A store that keeps runs in dictionaries of this process."""

    concurrent_checkpoints = 1

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._state = State()
        self._unit = StateUnit(self._state)
        self._listeners: Listeners[Hint] = Listeners()

    @property
    def database(self) -> None:
        """None, because this store cannot hold tables of users."""

    @property
    def transfer(self) -> MemoryTransfer:
        return MemoryTransfer(self._locked, self._clock)

    # Lifetime

    async def open(self, migrate: Report | None = None) -> None: ...

    async def close(self) -> None: ...

    def for_another_loop(self) -> MemoryStore:
        return self  # only this object has the runs, and its lock makes it safe for several threads

    def schema(self) -> SchemaStatus:
        return SchemaStatus(current=1, wanted=1)

    async def now(self) -> Micros:
        return self._clock.now()

    @contextmanager
    def _locked(self) -> Iterator[StateUnit]:
        """Give exclusive use of the unit of work, then deliver hints about the changes to listeners."""
        with self._lock:
            try:
                yield self._unit
            finally:
                self._send_hint()

    # Writing

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        with self._locked() as unit:
            return starts.create(unit, intents, lease, self._clock.now())

    async def claim(self, request: ClaimRequest) -> Claimed:
        with self._locked() as unit:
            return claims.claim(unit, request, self._clock.now())

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        with self._locked() as unit:
            return checkpoint_rules.write(unit, checkpoints, self._clock.now())

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        with self._locked() as unit:
            return leases.renew(unit, worker, holdings, lease, self._clock.now())

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        with self._locked() as unit:
            return pruning.prune(unit, limit, retention, self._clock.now(), is_dry_run=is_dry_run)

    async def apply(self, command: Command[A]) -> A:
        with self._locked() as unit:
            return commands.apply(unit, command, self._clock.now())

    # Reading

    async def get(self, run_id: str | None = None, *, key: str | None = None) -> Details | None:
        with self._lock:
            return reads.get(self._state, run_id, key)

    async def list(self, query: Query) -> Sequence[Details]:
        with self._lock:
            return reads.list_runs(self._state, query)

    async def history(self, run_id: str) -> Sequence[Entry]:
        with self._lock:
            return reads.history(self._state, run_id)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        with self._lock:
            return reads.audit(self._state, run_id)

    async def stats(self, question: Stat[A]) -> A:
        with self._lock:
            return reads.answer(self._state, question, self._clock.now())

    async def catalog(self, question: Listing[A]) -> A:
        with self._lock:
            return reads.answer(self._state, question, self._clock.now())

    async def changes(self, question: Awaited[A]) -> A:
        with self._lock:
            return reads.answer(self._state, question, self._clock.now())

    async def workers(self) -> Sequence[WorkerRecord]:
        with self._lock:
            return reads.workers(self._state)

    async def check(self) -> Sequence[Finding]:
        return [Finding.warning("store", "memory:// keeps nothing after the process ends")]

    # Hints

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        with self._lock:
            return self._listeners.add(listener)

    def _send_hint(self) -> None:
        hint, self._state.news = self._state.news.hint(), News()
        if hint is not None:
            self._listeners.send(hint)


class MemoryTransfer:
    """The `Transfer` capability of the memory store. `locked` gives exclusive use of the unit of work."""

    def __init__(self, locked: Callable[[], AbstractContextManager[StateUnit]], clock: Clock) -> None:
        self._locked = locked
        self._clock = clock

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        with self._locked() as unit:
            return reads.dump(unit.state, run_ids)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        with self._locked() as unit:
            return reads.kept_events(unit.state, after, limit)

    async def last_event(self) -> int:
        with self._locked() as unit:
            return unit.state.event_count

    async def restore(self, restoration: Restoration) -> Restored:
        with self._locked() as unit:
            return transfers.restore(unit, restoration, self._clock.now())

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        with self._locked() as unit:
            return schedules.restore(unit, wanted)
