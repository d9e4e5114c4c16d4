"""The heartbeat keeps the leases of a busy worker, from its own thread. Tests use real time, because threads do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import Context, Holdfast, Retry, RunState
from holdfast.app import session_of
from holdfast.core.checkpoint import Verdicts
from holdfast.core.clock import SECOND, Micros, SystemClock
from holdfast.core.model import Holding, WorkerRecord
from holdfast.core.ports import Store
from holdfast.engine.explain import DEAD_AFTER
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract.arrange import OTHER_WORKER, claim
from holdfast.testing.contract.clock import SettableClock
from holdfast.testing.faults import FaultyStore
from holdfast.testing.patience import GUARD_SECONDS, until, wait_until
from holdfast.worker import leases

LEASE_SECONDS = 0.25


def application(store: Store) -> Holdfast:
    hf = Holdfast(store=store)

    @hf.workflow("long.v1")
    async def long(ctx: Context) -> None:
        await ctx.step("long", asyncio.Event().wait)

    return hf


class Patient(FaultyStore):
    """A store whose time advances only while leases are renewed: by more than half a lease after each heartbeat."""

    def __init__(self) -> None:
        self.clock = SettableClock(SystemClock().now())
        super().__init__(MemoryStore(clock=self.clock))
        self._beats = 0
        self._wanted = 0

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        answer = super().renew(worker, holdings, lease)
        self._beats += 1
        return answer

    def pass_time(self) -> None:
        self.clock.advance(round(0.6 * LEASE_SECONDS * SECOND))
        self._wanted = self._beats + 2  # the next one may have started before

    def has_beaten(self) -> bool:
        return self._beats >= self._wanted

    def is_taken(self) -> bool:
        """True if another worker, in another thread, gets the run."""
        with ThreadPoolExecutor(1) as elsewhere:
            claimed = claim(self.inner, worker=OTHER_WORKER, types=("kept.v1",))
            return bool(elsewhere.submit(asyncio.run, claimed).result().leases)


@pytest.mark.parametrize("is_blocking", [False, True], ids=["waiting", "blocking the loop"])
async def test_a_run_is_kept_however_long_its_steps_take_despite_rivals(
    monkeypatch: pytest.MonkeyPatch, *, is_blocking: bool
) -> None:
    monkeypatch.setattr(leases, "SILENT_LEASES", 10_000)
    store = Patient()
    hf = Holdfast(store=store)

    async def long() -> bool:
        for _ in range(6):
            store.pass_time()
            if is_blocking:
                wait_until("the heart has beaten", store.has_beaten)
            else:
                await until("the heart has beaten", store.has_beaten)
            if store.is_taken():
                return False
        return True

    @hf.workflow("kept.v1")
    async def keeps(ctx: Context) -> bool:
        return await ctx.step("long", long, retry=Retry(max_attempts=1))

    async with hf, hf.worker(lease_seconds=LEASE_SECONDS):
        run = await hf.start(keeps)
        assert await run.result(timeout=GUARD_SECONDS)
        assert [fact.event for fact in await run.audit()] == ["created", "claimed", "succeeded"]


async def test_a_worker_announces_types_that_are_registered_while_it_works() -> None:
    hf = application(FaultyStore(MemoryStore()))
    async with hf, hf.worker(lease_seconds=LEASE_SECONDS):
        hf.task("later.v1")(lambda: None)

        async def is_told() -> bool:
            return "later.v1" in (await session_of(hf).store.workers())[0].types

        await until("a heartbeat announces the new type", is_told)


async def test_a_worker_reports_often_however_long_its_leases_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LONGEST_PAUSE_SECONDS", 0.01)
    hf = application(FaultyStore(MemoryStore()))
    async with hf, hf.worker(lease_seconds=3600):

        async def is_heard_of() -> bool:
            (worker,) = await session_of(hf).store.workers()
            return worker.heartbeat_at != worker.started_at

        await until("the worker is heard of", is_heard_of)


def test_a_worker_reports_several_times_before_it_counts_as_dead() -> None:
    assert leases.LONGEST_PAUSE_SECONDS * 3 <= DEAD_AFTER / SECOND


async def test_a_heartbeat_that_cannot_reach_the_store_logs_once_and_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStore(MemoryStore())
    hf = application(store)
    async with hf, hf.worker(lease_seconds=LEASE_SECONDS):
        store.crashed.set()
        await until("the heart complains", lambda: "cannot renew leases" in caplog.text)
        store.revive()
        with caplog.at_level(logging.WARNING):
            await until("the heart has recovered", lambda: "renewing leases works again" in caplog.text)
        assert caplog.text.count("cannot renew leases") == 1


async def test_a_heartbeat_notices_a_cancelled_run_even_without_a_hint() -> None:
    store = FaultyStore(MemoryStore())
    hf = application(store)
    async with hf:
        worker = hf.worker(lease_seconds=LEASE_SECONDS)
        await worker.start()
        run = await hf.start("long.v1")
        await until("the body has begun", lambda: worker.is_executing)
        worker._leaving.pop(0)()
        await run.cancel()
        await until("the body is cancelled", lambda: not worker.is_executing)
        assert (await run.info()).state is RunState.CANCELLED
        await worker.stop()
