"""The store port in memory: what callers see. It decides nothing; it holds the lock and tells whoever listens.

Each operation is atomic because it never awaits; the lock is there for the heartbeat, which renews from its own
thread, and for other event loops, each in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Control, Created, LeaseRequest, Verdicts
from holdfast.core.clock import Clock, Micros, SystemClock
from holdfast.core.hint import Hint, News
from holdfast.core.model import (
    AuditFact,
    Backlog,
    DeadLetter,
    Entry,
    Event,
    Firing,
    Holding,
    Intent,
    Message,
    Run,
    Schedule,
    Topic,
    TypeChange,
    TypeOffer,
    TypeRule,
    WorkerInfo,
)
from holdfast.core.ports import (
    Details,
    Due,
    Finding,
    Fired,
    LetterQuery,
    Pruned,
    Query,
    ScheduleQuery,
    SchemaStatus,
    Sent,
    SlotUse,
)
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored
from holdfast.stores.memory import claims, reads
from holdfast.stores.memory.state import State
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import (
    arrivals,
    controls,
    dead_letters,
    leases,
    pruning,
    schedules,
    starts,
    transfers,
    types,
)
from holdfast.stores.operations.checkpoints import write as write_checkpoints

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _atomic(
    operation: Callable[Concatenate[MemoryStore, _P], _R],
) -> Callable[Concatenate[MemoryStore, _P], Coroutine[Any, Any, _R]]:
    """Make a plain method an operation of the port: it never awaits, and afterwards whoever listens is told."""

    @wraps(operation)
    async def atomic(self: MemoryStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._lock:
            try:
                return operation(self, *args, **kwargs)
            finally:
                self._tell()

    return atomic


class MemoryStore:
    """Runs in a dictionary, rules from core, nothing else."""

    flushes = 1

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._state = State()
        self._unit = StateUnit(self._state)
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[Hint], None]]] = []

    # Lifetime

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def twin(self) -> MemoryStore:
        return self  # there is no other way to the same runs, and no two threads are in here at once

    def schema(self) -> SchemaStatus:
        return SchemaStatus(current=1, wanted=1)

    @property
    def database(self) -> None:
        """None: users keep no tables in it."""

    async def now(self) -> Micros:
        return self._clock.now()

    # Writing

    @_atomic
    def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        return starts.create(self._unit, intents, lease, self._clock.now())

    @_atomic
    def claim(self, request: ClaimRequest) -> Claimed:
        return claims.claim(self._unit, request, self._clock.now())

    @_atomic
    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        return write_checkpoints(self._unit, checkpoints, self._clock.now())

    def renew(self, worker: WorkerInfo, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        with self._lock:
            return leases.renew(self._unit, worker, holdings, lease, self._clock.now())

    @_atomic
    def retire(self, worker_id: str) -> None:
        self._unit.workers.remove(worker_id)

    @_atomic
    def send(self, messages: Sequence[Message]) -> Sequence[Sent]:
        return arrivals.send(self._unit, messages, self._clock.now())

    @_atomic
    def emit(self, events: Sequence[Event]) -> Sequence[int]:
        return arrivals.emit(self._unit, events, self._clock.now())

    @_atomic
    def put_topics(self, topics: Sequence[Topic]) -> None:
        self._state.topics |= {topic.name: topic for topic in topics}

    @_atomic
    def change_types(self, changes: Sequence[TypeChange]) -> None:
        types.change(self._unit, changes, self._clock.now())

    @_atomic
    def offer_types(self, worker: str, offers: Sequence[TypeOffer]) -> None:
        types.offer(self._unit, worker, offers, self._clock.now())

    @_atomic
    def replay_letters(self, numbers: Sequence[int]) -> int:
        return dead_letters.replay(self._unit, numbers, self._clock.now())

    @_atomic
    def purge_letters(self, numbers: Sequence[int]) -> int:
        return dead_letters.purge(self._unit, numbers)

    @_atomic
    def restore(self, restoration: Restoration) -> Restored:
        return transfers.restore(self._unit, restoration, self._clock.now())

    @_atomic
    def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        return schedules.restore(self._unit, wanted)

    @_atomic
    def put_schedules(self, wanted: Sequence[Schedule]) -> Sequence[Schedule]:
        return schedules.put(self._unit, wanted, self._clock.now())

    @_atomic
    def pause_schedules(self, names: Sequence[str], *, is_paused: bool) -> Sequence[bool]:
        return schedules.pause(self._unit, names, self._clock.now(), is_paused=is_paused)

    @_atomic
    def remove_schedules(self, names: Sequence[str]) -> Sequence[bool]:
        return schedules.remove(self._unit, names)

    @_atomic
    def trigger_schedule(self, name: str, run_id: str) -> bool:
        return schedules.trigger(self._unit, name, run_id, self._clock.now())

    @_atomic
    def fire(self, firings: Sequence[Firing]) -> Sequence[Fired]:
        return schedules.fire(self._unit, firings, self._clock.now())

    @_atomic
    def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        now = self._clock.now()
        if not is_dry_run:
            return pruning.prune(self._unit, limit, retention, now)
        copy = StateUnit(deepcopy(self._state))
        pruned = pruning.prune_events(copy, limit, now)
        runs, _ = pruning.purge(copy, max(1, len(copy.state.records)), retention, now)  # all of them are counted
        return replace(pruned, runs=runs)

    @_atomic
    def control(self, run_id: str, request: Control) -> bool | None:
        return controls.control(self._unit, run_id, request, self._clock.now())

    # Reading

    async def get(self, run_id: str) -> Details | None:
        with self._lock:
            return reads.get(self._state, run_id)

    async def find(self, key: str) -> str | None:
        with self._lock:
            return reads.find(self._state, key)

    async def list(self, query: Query) -> Sequence[Details]:
        with self._lock:
            return reads.list_runs(self._state, query)

    async def history(self, run_id: str) -> Sequence[Entry]:
        with self._lock:
            return reads.history(self._state, run_id)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        with self._lock:
            return reads.audit(self._state, run_id)

    async def ends(self, run_ids: Sequence[str]) -> Sequence[Run]:
        with self._lock:
            return reads.ends(self._state, run_ids)

    async def look(self, holdings: Sequence[Holding]) -> Verdicts:
        with self._lock:
            return leases.look(self._unit, holdings, self._clock.now())

    async def replies(self, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        with self._lock:
            return reads.replies(self._state, asked)

    async def topics(self) -> Sequence[Topic]:
        with self._lock:
            return reads.topics(self._state)

    async def types(self) -> Sequence[TypeRule]:
        with self._lock:
            return sorted(self._state.types.values(), key=lambda rule: rule.name)

    async def slots(self, type: str | None = None) -> Sequence[SlotUse]:
        with self._lock:
            return reads.slots(self._state, type)

    async def dead_letters(self, query: LetterQuery) -> Sequence[DeadLetter]:
        with self._lock:
            return reads.dead_letters(self._state, query)

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        with self._lock:
            return reads.dump(self._state, run_ids)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        with self._lock:
            return reads.kept_events(self._state, after, limit)

    async def last_event(self) -> int:
        with self._lock:
            return self._state.event_count

    async def schedules(self, query: ScheduleQuery) -> Sequence[Schedule]:
        with self._lock:
            return reads.schedules(self._state, query)

    async def due_schedules(self, limit: int, after: tuple[Micros, str] = (0, "")) -> Due:
        with self._lock:
            return reads.due_schedules(self._state, limit, after, self._clock.now())

    async def counts(self) -> dict[str, dict[RunState, int]]:
        with self._lock:
            return reads.counts(self._state)

    async def backlog(self) -> Sequence[Backlog]:
        with self._lock:
            return reads.backlog(self._state, self._clock.now())

    async def workers(self) -> Sequence[WorkerInfo]:
        with self._lock:
            return reads.workers(self._state)

    async def held(self) -> dict[str, int]:
        with self._lock:
            return reads.held(self._state)

    async def orphans(self, limit: int) -> Sequence[str]:
        with self._lock:
            return reads.orphans(self._state, limit)

    async def check(self) -> Sequence[Finding]:
        return [Finding.warning("store", "memory:// keeps nothing after the process ends")]

    # Telling

    def serve(self) -> Callable[[], None]:
        return lambda: None

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        subscription = (asyncio.get_running_loop(), listener)
        with self._lock:
            self._listeners.append(subscription)
        return lambda: self._forget(subscription)

    def _forget(self, subscription: tuple[asyncio.AbstractEventLoop, Callable[[Hint], None]]) -> None:
        with self._lock:
            if subscription in self._listeners:
                self._listeners.remove(subscription)

    def _tell(self) -> None:
        hint, self._state.news = self._state.news.hint(), News()
        if hint is not None:
            for loop, listener in self._listeners:
                with suppress(RuntimeError):  # the loop is closed, maybe by another thread just now
                    loop.call_soon_threadsafe(listener, hint)
