"""A store that fails as it is told to: before a call, after it, once, for good, or as you like.

    store = FaultyStore(MemoryStore(clock=clock))
    store.crash(7, when="after")                  # the seventh call is carried out, but its answer gets lost
    async with Harness(app, store=store, clock=clock) as h: ...

Only what workers ask for is disturbed and counted (`claim`, `checkpoint`, `transact`, `look`, `fire`, `renew`,
`retire`); the engine's own calls go through, as those of a process that lives on. It changes nothing and invents
nothing: whatever a call answers is the real store's answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Control, Created, LeaseRequest, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.hint import Hint
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
    Database,
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
    Store,
    Transacted,
    Transaction,
)
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored
from holdfast.testing.patience import wait_for

R = TypeVar("R")
When = Literal["before", "after"]
"""Before a call it is not carried out; after it, it is, and only its answer gets lost."""


class FaultyStore:
    """A store around another one, with faults planned by the number of a worker's call."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.calls: list[str] = []
        """The calls of workers so far, by name; their numbers begin with 1."""
        self.crashed = asyncio.Event()
        """Set while a planned crash has cut the workers off."""
        self.frozen = asyncio.Event()
        """Set while workers stand still at their next call."""
        self.under_way = 0
        """How many calls of workers the store is carrying out right now; a frozen one is not among them."""
        self._thawed = asyncio.Event()
        self._renewing = threading.Event()
        self._failures: dict[int, When] = {}
        self._crashes: dict[int, When] = {}
        self._actions: dict[tuple[str, When], Callable[[], Awaitable[object]]] = {}
        self._refusal: tuple[Callable[[Checkpoint], bool], Exception] | None = None

    # What is to go wrong

    def fail(self, number: int, *, when: When) -> None:
        """Have the call of this number fail once, as if the connection broke."""
        self._failures[number] = when

    def crash(self, number: int, *, when: When) -> None:
        """Cut the workers off at the call of this number, and until `revive`."""
        self._crashes[number] = when

    def revive(self) -> None:
        """Let workers through again: new ones, if the test is about a crash."""
        self.crashed.clear()

    def interpose(self, name: str, action: Callable[[], Awaitable[object]], *, when: When = "before") -> None:
        """Do something before the next call of this name, or before its answer arrives: send, wait for a signal."""
        self._actions[name, when] = action

    def freeze(self, name: str | None = None, *, when: When = "before") -> None:
        """Have workers stand still until `thaw`: from now on, or from the next call of this name on."""
        if name is not None:
            self.interpose(name, self._stand_still, when=when)
        else:
            self._thawed.clear()
            self._renewing.clear()
            self.frozen.set()

    async def _stand_still(self) -> None:
        self.freeze()
        await self._thawed.wait()

    def thaw(self) -> None:
        """Let frozen workers go on as if nothing had happened."""
        self.frozen.clear()
        self._thawed.set()
        self._renewing.set()

    def refuse(self, is_refused: Callable[[Checkpoint], bool], error: Exception) -> None:
        """Have every batch with such a checkpoint fail, as a database does that cannot take a value."""
        self._refusal = (is_refused, error)

    # What workers ask for

    async def claim(self, request: ClaimRequest) -> Claimed:
        return await self._through("claim", lambda: self.inner.claim(request))

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        if self._refusal is not None and any(map(self._refusal[0], checkpoints)):
            raise self._refusal[1]
        return await self._through("checkpoint", lambda: self.inner.checkpoint(checkpoints))

    async def look(self, holdings: Sequence[Holding]) -> Verdicts:
        return await self._through("look", lambda: self.inner.look(holdings))

    async def fire(self, firings: Sequence[Firing]) -> Sequence[Fired]:
        return await self._through("fire", lambda: self.inner.fire(firings))

    async def retire(self, worker_id: str) -> None:
        await self._through("retire", lambda: self.inner.retire(worker_id))

    def renew(self, worker: WorkerInfo, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        if self.frozen.is_set():
            wait_for("the frozen worker is thawed", self._renewing)
        lose_answer = self._begin("renew")
        answer = self.inner.renew(worker, holdings, lease)
        if lose_answer:
            raise _lost("renew")
        return answer

    async def _through(self, name: str, call: Callable[[], Awaitable[R]]) -> R:
        if (action := self._actions.pop((name, "before"), None)) is not None:
            await action()
        elif self.frozen.is_set():
            await self._thawed.wait()
        lose_answer = self._begin(name)
        self.under_way += 1
        try:
            answer = await call()
        finally:
            self.under_way -= 1
        if (action := self._actions.pop((name, "after"), None)) is not None:
            await action()
        if lose_answer:
            raise _lost(name)
        return answer

    def _begin(self, name: str) -> bool:
        """Count a call and let it fail if that is planned; True if its answer is to get lost."""
        if self.crashed.is_set():
            raise StoreUnavailable(f"{name}: this worker has crashed")
        self.calls.append(name)
        number = len(self.calls)
        crash = self._crashes.pop(number, None)
        fault = crash or self._failures.pop(number, None)
        if crash is not None:
            self.crashed.set()
        if fault == "before":
            raise StoreUnavailable(f"{name}: fault before call {number}")
        return fault == "after"

    # What the engine asks for

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    def twin(self) -> Store:
        return self.inner.twin()

    def schema(self) -> SchemaStatus:
        return self.inner.schema()

    @property
    def database(self) -> FaultyDatabase | None:
        inner = self.inner.database
        return None if inner is None else FaultyDatabase(inner, self._through)

    @property
    def flushes(self) -> int:
        return self.inner.flushes

    async def now(self) -> Micros:
        return await self.inner.now()

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        return await self.inner.create(intents, None if self.crashed.is_set() else lease)

    async def send(self, messages: Sequence[Message]) -> Sequence[Sent]:
        return await self.inner.send(messages)

    async def emit(self, events: Sequence[Event]) -> Sequence[int]:
        return await self.inner.emit(events)

    async def put_topics(self, topics: Sequence[Topic]) -> None:
        await self.inner.put_topics(topics)

    async def change_types(self, changes: Sequence[TypeChange]) -> None:
        await self.inner.change_types(changes)

    async def offer_types(self, worker: str, offers: Sequence[TypeOffer]) -> None:
        await self.inner.offer_types(worker, offers)

    async def replay_letters(self, numbers: Sequence[int]) -> int:
        return await self.inner.replay_letters(numbers)

    async def purge_letters(self, numbers: Sequence[int]) -> int:
        return await self.inner.purge_letters(numbers)

    async def put_schedules(self, schedules: Sequence[Schedule]) -> Sequence[Schedule]:
        return await self.inner.put_schedules(schedules)

    async def pause_schedules(self, names: Sequence[str], *, is_paused: bool) -> Sequence[bool]:
        return await self.inner.pause_schedules(names, is_paused=is_paused)

    async def remove_schedules(self, names: Sequence[str]) -> Sequence[bool]:
        return await self.inner.remove_schedules(names)

    async def trigger_schedule(self, name: str, run_id: str) -> bool:
        return await self.inner.trigger_schedule(name, run_id)

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        return await self.inner.prune(limit, retention=retention, is_dry_run=is_dry_run)

    async def control(self, run_id: str, request: Control) -> bool | None:
        return await self.inner.control(run_id, request)

    def serve(self) -> Callable[[], None]:
        return self.inner.serve()

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        return self.inner.listen(listener)

    async def get(self, run_id: str) -> Details | None:
        return await self.inner.get(run_id)

    async def find(self, key: str) -> str | None:
        return await self.inner.find(key)

    async def list(self, query: Query) -> Sequence[Details]:
        return await self.inner.list(query)

    async def history(self, run_id: str) -> Sequence[Entry]:
        return await self.inner.history(run_id)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        return await self.inner.audit(run_id)

    async def ends(self, run_ids: Sequence[str]) -> Sequence[Run]:
        return await self.inner.ends(run_ids)

    async def replies(self, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        return await self.inner.replies(asked)

    async def topics(self) -> Sequence[Topic]:
        return await self.inner.topics()

    async def types(self) -> Sequence[TypeRule]:
        return await self.inner.types()

    async def slots(self, type: str | None = None) -> Sequence[SlotUse]:
        return await self.inner.slots(type)

    async def dead_letters(self, query: LetterQuery) -> Sequence[DeadLetter]:
        return await self.inner.dead_letters(query)

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        return await self.inner.dump(run_ids)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        return await self.inner.kept_events(after, limit)

    async def last_event(self) -> int:
        return await self.inner.last_event()

    async def restore(self, restoration: Restoration) -> Restored:
        return await self.inner.restore(restoration)

    async def restore_schedules(self, schedules: Sequence[Schedule]) -> int:
        return await self.inner.restore_schedules(schedules)

    async def schedules(self, query: ScheduleQuery) -> Sequence[Schedule]:
        return await self.inner.schedules(query)

    async def due_schedules(self, limit: int, after: tuple[Micros, str] = (0, "")) -> Due:
        if self.frozen.is_set():
            await self._thawed.wait()
        if self.crashed.is_set():
            raise StoreUnavailable("due_schedules: this worker has crashed")
        return await self.inner.due_schedules(limit, after)

    async def counts(self) -> dict[str, dict[RunState, int]]:
        return await self.inner.counts()

    async def backlog(self) -> Sequence[Backlog]:
        return await self.inner.backlog()

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self.inner.workers()

    async def held(self) -> dict[str, int]:
        return await self.inner.held()

    async def orphans(self, limit: int) -> Sequence[str]:
        return await self.inner.orphans(limit)

    async def check(self) -> Sequence[Finding]:
        return await self.inner.check()


class FaultyDatabase:
    """The database of a faulty store: the transactions of workers are disturbed and counted as `transact`."""

    def __init__(
        self,
        database: Database,
        through: Callable[[str, Callable[[], Awaitable[Transacted]]], Awaitable[Transacted]],
    ) -> None:
        self.inner = database
        self._through = through

    async def transact(self, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
        return await self._through("transact", lambda: self.inner.transact(checkpoint, location, transaction))

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        return self.inner.connection(readonly=readonly)

    async def create_in(self, connection: object, intents: Sequence[Intent]) -> Created:
        return await self.inner.create_in(connection, intents)

    async def send_in(self, connection: object, messages: Sequence[Message]) -> Sequence[Sent]:
        return await self.inner.send_in(connection, messages)

    async def emit_in(self, connection: object, events: Sequence[Event]) -> Sequence[int]:
        return await self.inner.emit_in(connection, events)


def _lost(name: str) -> StoreUnavailable:
    return StoreUnavailable(f"{name}: carried out, but the answer got lost")
