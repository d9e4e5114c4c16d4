"""The worker: claims runs and executes them, many at once in one process.

`async with` runs it beside your own code. `run()` works until SIGTERM or SIGINT. `run_until_idle()` works until no run
is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from holdfast.config import settings
from holdfast.core.checkpoint import Claimed, Finish, LeaseRequest, Verdicts
from holdfast.core.clock import SECOND, FollowingClock, Micros, micros
from holdfast.core.commands import OfferTypes, RetireWorker
from holdfast.core.errors import InvalidRequest, SchemaOutOfDate, StoreUnavailable
from holdfast.core.intent import check_length, check_text, is_count
from holdfast.core.model import Holding, Lease, WorkerRecord, new_id
from holdfast.core.news import Hint, Signals
from holdfast.core.ports import Store
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.rules import SUSPECT_CRASHES
from holdfast.runner.operation import StepCall
from holdfast.runner.registry import Registry
from holdfast.worker.claimer import POLL, PYTHON, Claimer
from holdfast.worker.committer import Committer, Transactor
from holdfast.worker.executor import Executor
from holdfast.worker.leases import BEATS_PER_LEASE, LONGEST_PAUSE_SECONDS, Heartbeat, LeaseCheck
from holdfast.worker.pruner import PRUNE_EVERY, Pruner
from holdfast.worker.run_driver import RunDriver, WorkerClock
from holdfast.worker.scheduler import Scheduler, declare_schedules
from holdfast.worker.shutdown import Shutdown
from holdfast.worker.signals import SignalSender
from holdfast.worker.worker_types import WorkerTypes

_RELEASE_SECONDS = 5.0
_HEALTHY: Micros = 10 * SECOND

_log = logging.getLogger("holdfast.worker")


class Worker:
    """Claims and executes runs, many at once in one process. `hf.worker(…)` makes it; see there for its options.

    `async with hf.worker():` works beside your own code, `run()` until SIGTERM, and `run_until_idle()` until nothing is
    left to do. `name` is its name, by default host and process; `id` is unique.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        types: Sequence[str] | None = None,
        concurrency: int = settings.CONCURRENCY.default,
        threads: int = settings.THREADS.default,
        steps: int = settings.STEPS.default,
        lease_seconds: float = settings.LEASE.default.total_seconds(),
        grace_seconds: float = settings.GRACE.default.total_seconds(),
        name: str | None = None,
        retention: float | timedelta | None = None,
        clock: WorkerClock | None = None,
        signals: Signals | None = None,
        poll: Micros | None = POLL,
        prune_every: Micros | None = PRUNE_EVERY,
        flows: bool = True,
        flow_poll: Micros | None = None,
        has_heart: bool = True,
        always_replay: bool = False,
        body_of: Callable[[StepCall], Callable[..., Any]] | None = None,
        on_open: Callable[[], Awaitable[None]] | None = None,
        on_start: Callable[[Worker], None] | None = None,
        on_stop: Callable[[Worker], None] | None = None,
        on_end: Callable[[str, Finish], None] | None = None,
    ) -> None:
        for what, number in (("concurrency", concurrency), ("threads", threads), ("steps", steps)):
            if not is_count(number):
                raise InvalidRequest(f"worker({what}={number!r}): expected a whole number of at least 1")
        if lease_seconds <= 0 or grace_seconds < 0:
            raise InvalidRequest("worker: lease_seconds must be positive and grace_seconds must not be negative")
        self.name = check_text(name or f"{socket.gethostname()}-{os.getpid()}", "worker's name")
        # The id contains the name, so that the audit of a run names its worker long after that worker is gone.
        self.id = f"{self.name}.{new_id()[-12:]}"
        self.clock: WorkerClock = clock or FollowingClock()
        self._log = logging.LoggerAdapter(_log, {"worker": self.name})
        self.signal_sender = SignalSender(signals or Signals(), self.name, self.clock)
        self.is_draining = False
        self.gathers = True
        self.always_replay = always_replay
        self.body_of = body_of
        self.committer: Committer
        self.executor: Executor
        self.transactor: Transactor | None = None
        self._store = store
        self._registry = registry
        self._worker_types = WorkerTypes(registry, types, has_flows=flows, flow_poll=flow_poll)
        self._concurrency = concurrency
        self._threads = threads
        self._steps = steps
        self._lease = micros(lease_seconds)
        self.grace_seconds = grace_seconds
        self._poll = poll
        self._prune_every = prune_every
        self._retention = check_length(retention, "worker: retention") or RUN_RETENTION
        self._has_heart = has_heart
        self._on_open = on_open or store.open
        self._on_start = on_start
        self._on_stop = on_stop
        self._on_end = on_end
        self._drivers: dict[str, RunDriver] = {}
        self._lingering: dict[RunDriver, None] = {}
        self._renewed_at: Micros = 0
        self.leased_until: Micros = 0 if has_heart else sys.maxsize  # without a heartbeat nothing would extend it
        self._changed = asyncio.Event()
        self._heartbeat: Heartbeat | None = None
        self._pruner: Pruner | None = None
        self._scheduler: Scheduler
        self._claimer: Claimer
        self._leaving: list[Callable[[], None]] = []
        self._lease_check: LeaseCheck
        self._is_started = False
        self._is_gone = False
        self._stopping: asyncio.Task[None] | None = None
        self._offers = 0

    # Lifetime

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register with the store and begin to claim. `async with` does this."""
        if self._is_started:
            raise InvalidRequest("this worker was already started; create another one with hf.worker()")
        self._is_started = True
        try:
            await self._on_open()
        except BaseException:
            self._is_started = False  # so that `stop` does nothing
            raise
        self.committer = Committer(self._store, self.clock.sync, lambda: self.executor.is_idle, self.signal_sender)
        self.executor = Executor(steps=self._steps, threads=self._threads)
        if (database := self._store.database) is not None:
            self.transactor = Transactor(database, self.clock.sync)
        self._claimer = Claimer(
            self._store,
            self,
            worker_id=self.id,
            types=self.types,
            lease=self._lease,
            poll=self._poll,
            accept=self._accept_claimed,
        )
        self._lease_check = LeaseCheck(
            self._store, self.clock, self._holdings, self._accept_verdicts, self._on_lease_check
        )
        self._scheduler = Scheduler(
            self._store,
            self.clock,
            poll=self._poll,
            sync=self.clock.sync,
            on_end=self._on_schedules,
            signal_sender=self.signal_sender,
        )
        # The first `await` comes after all parts exist, so that a concurrent `stop` finds them.
        await self._store.apply(OfferTypes(worker=self.name, offers=self._worker_types.offers()))
        await self._worker_types.start(self._store, self, poll=self._poll)
        await self.renew()
        await declare_schedules(self._store, self._registry)
        if self._has_heart:
            self._heartbeat = Heartbeat(
                self._store,
                lambda: self._info,
                self._lease,
                holdings=self._holdings,
                now=self.clock.now,
                on_renewed=self._on_renewed,
            )
            self._heartbeat.start()
        if self._prune_every is not None:
            self._pruner = Pruner(self._store, self.clock, every=self._prune_every, retention=self._retention)
            self._pruner.start()
        self._leaving.append(self._store.listen(self._on_hint))
        self._worker_types.load_flows()  # for flows that were registered before it listened
        if (database := self._store.database) is not None:
            self._leaving.append(database.serve())
        self._claimer.wake()
        self._scheduler.wake()
        if self._on_start is not None:
            self._on_start(self)
        self.signal_sender.send_worker("worker.started")
        self._log.info("worker %s started: %d types, %d runs at once", self.name, len(self.types()), self._concurrency)

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Stop claiming, wait `grace_seconds` for running steps, then release all runs. `async with` ends with this.

        It continues even if its caller is cancelled. Calling it again waits until it has finished.
        """
        if self._stopping is None:
            if not self._is_started or self.is_draining:
                return
            self._stopping = asyncio.create_task(self._stop(grace_seconds))
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_seconds: float | None) -> None:
        await self._scheduler.stop()
        await self._claimer.stop()
        self.is_draining = True
        for driver in list(self._drivers.values()):
            driver.advance()
        grace = self.grace_seconds if grace_seconds is None else grace_seconds
        await self._until(lambda: not self.is_executing, grace)
        for driver in list(self._drivers.values()):
            driver.stop()
        if not await self._until(lambda: not self._drivers and not self._offers, _RELEASE_SECONDS):
            self._log.warning(
                "could not give back %d runs; other workers claim them when their leases end", len(self._drivers)
            )
        await self._release_all()
        with contextlib.suppress(StoreUnavailable, SchemaOutOfDate, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._store.apply(RetireWorker(worker_id=self.id))
        self.signal_sender.send_worker("worker.stopped")
        self._log.info("worker %s stopped", self.name)

    async def kill(self) -> None:
        """Stop without a write to the store, as a crash would. For tests."""
        self.is_draining = True
        await self._release_all()

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT. A second signal ends the grace period at once."""
        shutdown = Shutdown()
        with shutdown.from_person():
            async with self:
                await self.obey(shutdown)

    async def obey(self, shutdown: Shutdown) -> None:
        """Work until the order to stop, after the worker was started. An order to hurry ends the grace at once."""
        await shutdown.stop.wait()
        self._log.info("worker %s stops: no more claims; running steps get %g s", self.name, self.grace_seconds)
        drain = asyncio.create_task(self.stop())
        hurry = asyncio.create_task(shutdown.hurry.wait())
        await asyncio.wait([drain, hurry], return_when=asyncio.FIRST_COMPLETED)
        if not drain.done():
            for driver in list(self._drivers.values()):
                driver.stop()
        hurry.cancel()
        await drain

    async def run_until_idle(self) -> None:
        """Work until no run of its types is held here or due. Sleeping and waiting runs do not count."""
        is_guest = self._is_started
        if not is_guest:
            await self.start()
        try:
            await self._until(lambda: self.is_idle and self._claimer.confirm(), None)
        finally:
            if not is_guest:
                await self.stop()

    @property
    def is_idle(self) -> bool:
        """True if it holds no run, and its last round of claims and schedules found nothing due."""
        is_free = not self._drivers and self.committer.is_idle and not self._worker_types.is_running
        return is_free and self._claimer.is_idle and self._scheduler.is_idle

    @property
    def is_quiet(self) -> bool:
        """True if nothing happens until time passes, something arrives, or a step body ends."""
        jobs = (self._claimer, self._scheduler, self._lease_check, self._worker_types)
        return self.committer.is_idle and not any(job.is_running for job in jobs)

    @property
    def is_executing(self) -> bool:
        """True if a step body or a transaction runs whose result a run waits for."""
        return any(driver.is_executing for driver in self._drivers.values())

    async def _until(self, is_reached: Callable[[], bool], seconds: float | None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_reached():
                    self._changed.clear()
                    await self._changed.wait()
        return is_reached()

    async def _release_all(self) -> None:
        self._is_gone = True
        if self._on_stop is not None:
            self._on_stop(self)
        for leave in self._leaving:
            leave()
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        if self._pruner is not None:
            await self._pruner.stop()
        await self._scheduler.stop()
        await self._worker_types.stop()
        await self._lease_check.stop()
        await self._claimer.stop()
        await self.committer.close()
        if self.transactor is not None:
            await self.transactor.close()
        for driver in list(self._drivers.values()):
            driver.drop()
        self.executor.close()

    def types(self) -> tuple[str, ...]:
        """Return the registered types that match the patterns, including types registered while it works."""
        return self._worker_types.types()

    # Claiming

    @property
    def is_healthy(self) -> bool:
        """True if its leases were renewed recently, so the event loop and the store both respond."""
        beat = min(self._lease // BEATS_PER_LEASE, round(LONGEST_PAUSE_SECONDS * SECOND))
        return self.clock.now() - self._renewed_at <= max(4 * beat, _HEALTHY)

    @property
    def slots(self) -> int:
        """Maximum number of runs held at once."""
        return self._concurrency

    @property
    def held_count(self) -> int:
        """Number of runs held now."""
        return len(self._drivers)

    def free(self) -> int:
        """Return the number of runs that it can still take. A lingering run counts as a free slot."""
        return self._concurrency - len(self._drivers) - self._offers + len(self._lingering)

    def holds_suspect(self) -> bool:
        """Return True if it holds a suspect: a run with repeated crashes. A worker holds at most one suspect."""
        return any(driver.crashes >= SUSPECT_CRASHES for driver in self._drivers.values())

    def linger(self, driver: RunDriver, is_lingering: bool) -> None:  # noqa: FBT001 - the name says it
        """Note that a held run begins or stops to wait in memory for a near deadline."""
        if is_lingering:
            self._lingering[driver] = None
            self._claimer.claim()
        else:
            del self._lingering[driver]

    def is_crowded(self) -> bool:
        """Return True if it holds more runs than `concurrency`."""
        return len(self._drivers) > self._concurrency

    def offer(self, type: str) -> LeaseRequest | None:
        """Return a request to lease a new run to this worker at its creation, or None if the worker is not free."""
        has_place = len(self._drivers) + self._offers < self._concurrency
        is_free = has_place and self._claimer.was_short and self._claimer.is_idle
        if self.is_draining or not is_free or type not in self.types():
            return None
        self._offers += 1
        return LeaseRequest(worker=self.id, claim_id=new_id(), lease=self._lease, python=PYTHON)

    def accept(self, leases: Sequence[Lease], now: Micros) -> None:
        """Settle an offer: hold the created run if it was leased to this worker."""
        self._offers -= 1
        self.take(leases, now)
        self._claimer.claim()  # without a lease, the reserved slot is free again

    def recall(self, request: LeaseRequest) -> None:
        """Ask for the run of an offer whose answer got lost. It may exist and be leased to this worker."""
        self._offers -= 1
        self._claimer.recall(request)
        self._changed.set()

    def take(self, leases: Sequence[Lease], now: Micros) -> None:
        """Hold and drive runs that were leased to this worker. Called from a plain callback."""
        if self._is_gone:
            return
        self.clock.sync(now)
        taken = []
        for lease in leases:
            definition = self._worker_types.definition(lease.run.type)
            if (stale := self._drivers.pop(lease.run.id, None)) is not None:
                stale.lose()  # its lease ended unnoticed; the new lease counts
            driver = RunDriver(lease, definition, self)
            self._drivers[driver.id] = driver
            taken.append(driver)
        for driver in taken:
            driver.begin()
        if self.is_crowded():
            for driver in list(self._lingering):
                driver.advance()
        self._changed.set()

    def on_flows(self, run_ids: Sequence[str], *, has_new: bool) -> None:
        """Claim runs of new flows, and let runs continue whose programs were loaded."""
        if has_new:
            self._claimer.wake()
        for run_id in run_ids:
            if (driver := self._drivers.get(run_id)) is not None:
                driver.advance()
        self._changed.set()

    def _accept_claimed(self, claimed: Claimed) -> None:
        self.clock.sync(claimed.now, self._claimer.asked_at)
        self.take(claimed.leases, claimed.now)

    def release(self, driver: RunDriver, end: Finish | None, ready_at: Micros | None) -> None:
        """Forget a run that is no longer held here, and claim for the free slot."""
        if ready_at is not None:
            self._claimer.wake_by(ready_at)
        if self._drivers.get(driver.id) is driver:
            del self._drivers[driver.id]
        if end is not None and self._on_end is not None:
            self._on_end(driver.id, end)
        self._changed.set()
        self._claimer.claim(is_outdated=True)

    # Schedules

    def _on_schedules(self, has_made_runs: bool) -> None:  # noqa: FBT001 - the name says it
        if has_made_runs:
            self._claimer.wake()
        self._changed.set()

    # Hints

    def _on_hint(self, hint: Hint) -> None:
        self._scheduler.on_hint(hint)
        self._worker_types.on_hint(hint)
        if hint.is_elsewhere or not hint.ready.isdisjoint(self.types()):
            wake = self._claimer.wake_for_others if hint.is_foreign else self._claimer.wake
            wake()
        changed = hint.arrived | hint.taken
        if self._drivers and (hint.is_elsewhere or any(run_id in self._drivers for run_id in changed)):
            self._lease_check.check(is_elsewhere=hint.is_elsewhere)

    def _on_lease_check(self, error: BaseException | None) -> None:
        if error is not None:
            self._log.error("checking the leases of held runs failed", exc_info=error)
        self._changed.set()

    # Leases

    @property
    def _info(self) -> WorkerRecord:
        return WorkerRecord(
            id=self.id,
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            types=self.types(),
            concurrency=self._concurrency,
        )

    def _holdings(self) -> list[Holding]:
        return [driver.holding for driver in list(self._drivers.values())]

    def _on_renewed(self, holdings: Sequence[Holding], asked_at: Micros, answer: Verdicts) -> None:
        self.clock.sync(answer.now, asked_at)
        self._renewed_at = answer.now
        if self._has_heart:
            self.leased_until = answer.now + self._lease
        self._accept_verdicts(holdings, answer)

    def _accept_verdicts(self, holdings: Sequence[Holding], answer: Verdicts) -> None:
        """Pass verdicts to the drivers. The token check skips runs that were released and claimed again since."""
        self.clock.sync(answer.now)
        for holding, verdict in zip(holdings, answer.verdicts, strict=True):
            driver = self._drivers.get(holding.run_id)
            if driver is not None and driver.token == holding.token:
                driver.apply(verdict)
        self._changed.set()

    async def renew_if_late(self) -> None:
        """Renew before claiming if the heartbeat is late, so that no other worker claims the runs held here."""
        if self._drivers and self.clock.now() - self._renewed_at > self._lease * 2 // BEATS_PER_LEASE:
            await self.renew()

    async def renew(self) -> None:
        """Renew the leases now. The heartbeat renews them regularly."""
        holdings, asked_at = self._holdings(), self.clock.now()
        answer = await asyncio.to_thread(self._store.renew, self._info, holdings, self._lease)
        asyncio.get_running_loop().call_soon(self._on_renewed, holdings, asked_at, answer)
        self.clock.sync(answer.now, asked_at)
        self._renewed_at = answer.now
