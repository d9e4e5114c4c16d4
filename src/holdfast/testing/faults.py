"""A store wrapper that injects faults: before or after a call, once or until `revive`.

    store = FaultyStore(MemoryStore(clock=clock))
    store.crash(7, when="after")                  # the store carries out the seventh call, but its answer is lost
    async with Harness(app, store=store, clock=clock) as h: ...

Faults affect only the calls of workers (`claim`, `checkpoint`, `transact`, `look`, `fire`, `renew`, `retire`), and only
these are counted. The engine's own calls always go through, like those of a process that survives. The wrapper never
changes an answer: a call either fails or returns the real store's answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Created, LeaseRequest, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.commands import Command, Sent
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import AuditFact, Entry, Event, Holding, Intent, MessageToRun, WorkerRecord
from holdfast.core.news import Hint
from holdfast.core.ports import (
    Database,
    Finding,
    Pruned,
    Report,
    SchemaStatus,
    Store,
    Transacted,
    Transaction,
    Transfer,
)
from holdfast.core.questions import Awaited, Details, ListDueSchedules, Listing, Query, Stat
from holdfast.core.retention import RUN_RETENTION
from holdfast.testing.calls import StoreCall
from holdfast.testing.patience import wait_for

R = TypeVar("R")
When = Literal["before", "after"]
"""The moment of a fault: `before` the store carries out the call, or `after`, so that only the answer is lost."""


OF_WORKERS = frozenset({"claim", "checkpoint", "transact", "look", "fire", "renew", "retire"})
"""Names of the calls that can fail and that are counted: those of workers."""


class FaultyStore:
    """A store that wraps another one and fails as a test plans it, by the number or name of a worker's call.

        store = FaultyStore(MemoryStore(clock=clock))
        store.crash(7, when="after")
        async with Harness(hf, store=store, clock=clock) as h: ...

    The calls are `claim`, `checkpoint`, `transact`, `look`, `fire`, `renew` and `retire`. Other calls go through. With
    `when="before"` a call is not carried out; with `when="after"` it is, and only its answer gets lost.
    """

    def __init__(self, store: Store) -> None:
        self.inner = store
        """The wrapped store."""
        self.calls: list[str] = []
        """The calls of workers so far, by name. Their numbers begin with 1."""
        self.crashed = asyncio.Event()
        """Set while a planned crash has cut off the workers."""
        self.frozen = asyncio.Event()
        """Set while workers are frozen: each one stops at its next call."""
        self.under_way = 0
        """Number of worker calls that the store executes right now, without frozen ones."""
        self._thawed = asyncio.Event()
        self._renewing = threading.Event()
        self._failures: dict[int, When] = {}
        self._crashes: dict[int, When] = {}
        self._actions: dict[tuple[str, When], Callable[[], Awaitable[object]]] = {}
        self._refusal: tuple[Callable[[Checkpoint], bool], Exception] | None = None

    # Planning faults

    def fail(self, number: int, *, when: When) -> None:
        """Let the call with this number fail once, as if the connection broke."""
        self._failures[number] = when

    def crash(self, number: int, *, when: When) -> None:
        """Cut off the workers at the call with this number, until `revive`."""
        self._crashes[number] = when

    def revive(self) -> None:
        """Let workers through again, such as those that the test starts after a crash."""
        self.crashed.clear()

    def interpose(self, name: str, action: Callable[[], Awaitable[object]], *, when: When = "before") -> None:
        """Await `action()` before the next call with this name, or before its answer arrives."""
        self._actions[name, when] = action

    def freeze(self, name: str | None = None, *, when: When = "before") -> None:
        """Make workers stand still until `thaw`: now, or at the next call with this name."""
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
        """Let frozen workers continue."""
        self.frozen.clear()
        self._thawed.set()
        self._renewing.set()

    def refuse(self, is_refused: Callable[[Checkpoint], bool], error: Exception) -> None:
        """Let every batch fail with `error` that has such a checkpoint, like a database that cannot take a value."""
        self._refusal = (is_refused, error)

    # Calls of workers

    async def claim(self, request: ClaimRequest) -> Claimed:
        return await self._through("claim", lambda: self.inner.claim(request))

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        if self._refusal is not None and any(map(self._refusal[0], checkpoints)):
            raise self._refusal[1]
        return await self._through("checkpoint", lambda: self.inner.checkpoint(checkpoints))

    async def changes(self, question: Awaited[R]) -> R:
        return await self._through(StoreCall.of("changes", question).name, lambda: self.inner.changes(question))

    async def apply(self, command: Command[R]) -> R:
        return await self._through(StoreCall.of("apply", command).name, lambda: self.inner.apply(command))

    async def catalog(self, question: Listing[R]) -> R:
        if isinstance(question, ListDueSchedules):
            if self.frozen.is_set():
                await self._thawed.wait()
            if self.crashed.is_set():
                raise StoreUnavailable("due_schedules: this worker has crashed; call revive() to let workers through")
        return await self.inner.catalog(question)

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        if self.frozen.is_set():
            wait_for("the frozen worker is thawed", self._renewing)
        lose_answer = self._begin("renew")
        answer = self.inner.renew(worker, holdings, lease)
        if lose_answer:
            raise _lost("renew")
        return answer

    async def _through(self, name: str, call: Callable[[], Awaitable[R]]) -> R:
        if name not in OF_WORKERS:
            return await call()
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
        """Count a call and raise its planned fault, if any. Return True if the answer must be lost."""
        if self.crashed.is_set():
            raise StoreUnavailable(f"{name}: this worker has crashed; call revive() to let workers through")
        self.calls.append(name)
        number = len(self.calls)
        crash = self._crashes.pop(number, None)
        fault = crash or self._failures.pop(number, None)
        if crash is not None:
            self.crashed.set()
        if fault == "before":
            raise StoreUnavailable(f"{name}: planned fault before call {number}")
        return fault == "after"

    # Calls of the engine

    async def open(self, migrate: Report | None = None) -> None:
        await self.inner.open(migrate)

    async def close(self) -> None:
        await self.inner.close()

    def for_another_loop(self) -> Store:
        return self.inner.for_another_loop()

    def schema(self) -> SchemaStatus:
        return self.inner.schema()

    @property
    def database(self) -> FaultyDatabase | None:
        inner = self.inner.database
        return None if inner is None else FaultyDatabase(inner, self._through)

    @property
    def transfer(self) -> Transfer | None:
        return self.inner.transfer

    @property
    def concurrent_checkpoints(self) -> int:
        return self.inner.concurrent_checkpoints

    async def now(self) -> Micros:
        return await self.inner.now()

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        return await self.inner.create(intents, None if self.crashed.is_set() else lease)

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        return await self.inner.prune(limit, retention=retention, is_dry_run=is_dry_run)

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        return self.inner.listen(listener)

    async def get(self, run_id: str | None = None, *, key: str | None = None) -> Details | None:
        return await self.inner.get(run_id, key=key)

    async def list(self, query: Query) -> Sequence[Details]:
        return await self.inner.list(query)

    async def history(self, run_id: str) -> Sequence[Entry]:
        return await self.inner.history(run_id)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        return await self.inner.audit(run_id)

    async def stats(self, question: Stat[R]) -> R:
        return await self.inner.stats(question)

    async def workers(self) -> Sequence[WorkerRecord]:
        return await self.inner.workers()

    async def check(self) -> Sequence[Finding]:
        return await self.inner.check()


class FaultyDatabase:
    """The database of a faulty store. Worker transactions can fail, and are counted, as `transact`."""

    def __init__(
        self,
        database: Database,
        through: Callable[[str, Callable[[], Awaitable[Transacted]]], Awaitable[Transacted]],
    ) -> None:
        self.inner = database
        self._through = through

    async def transact(self, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
        return await self._through("transact", lambda: self.inner.transact(checkpoint, location, transaction))

    def serve(self) -> Callable[[], None]:
        return self.inner.serve()

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        return self.inner.connection(readonly=readonly)

    async def create_in(self, connection: object, intents: Sequence[Intent]) -> Created:
        return await self.inner.create_in(connection, intents)

    async def send_in(self, connection: object, messages: Sequence[MessageToRun], *, by: str = "") -> Sequence[Sent]:
        return await self.inner.send_in(connection, messages, by=by)

    async def emit_in(self, connection: object, events: Sequence[Event], *, by: str = "") -> Sequence[int]:
        return await self.inner.emit_in(connection, events, by=by)


def _lost(name: str) -> StoreUnavailable:
    return StoreUnavailable(f"{name}: carried out, but the answer was lost")
