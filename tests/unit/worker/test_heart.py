"""The heart: it keeps the leases of a busy worker, from a thread of its own. In real time, as threads have no other."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from holdfast import Context, Holdfast, RunState
from holdfast.core.clock import SECOND
from holdfast.engine.routing import DEAD_AFTER
from holdfast.stores.memory import MemoryStore
from holdfast.testing.faults import FaultyStore
from holdfast.worker import heart

LEASE_SECONDS = 0.25


def application(store: FaultyStore) -> Holdfast:
    hf = Holdfast(store=store)

    async def long() -> str:
        await asyncio.sleep(3 * LEASE_SECONDS)
        return "kept"

    async def blocking() -> str:
        time.sleep(3 * LEASE_SECONDS)
        return "kept"

    @hf.workflow("long.v1")
    async def keeps(ctx: Context) -> str:
        return await ctx.step("long", long)

    @hf.workflow("blocking.v1")
    async def blocks(ctx: Context) -> str:
        return await ctx.step("blocking", blocking)

    return hf


@pytest.mark.parametrize("type", ["long.v1", "blocking.v1"])
async def test_a_run_is_kept_however_long_its_steps_take_and_whoever_else_would_like_it(type: str) -> None:
    hf = application(FaultyStore(MemoryStore()))
    async with hf, hf.worker(lease_seconds=LEASE_SECONDS):
        run = await hf.start(type)
        await asyncio.sleep(0)
        async with hf.worker(lease_seconds=LEASE_SECONDS):
            assert await run.result(timeout=10) == "kept"
        assert [fact.event for fact in await run.audit()] == ["created", "claimed", "succeeded"]


async def test_a_worker_tells_of_types_that_are_registered_while_it_works() -> None:
    hf = application(FaultyStore(MemoryStore()))
    async with hf, hf.worker(lease_seconds=LEASE_SECONDS):
        hf.task("later.v1")(lambda: None)
        async with asyncio.timeout(10):
            while "later.v1" not in (await hf.store.workers())[0].types:
                await asyncio.sleep(0.01)


async def test_a_worker_is_heard_of_often_however_long_its_leases_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heart, "LONGEST_PAUSE_SECONDS", 0.01)
    hf = application(FaultyStore(MemoryStore()))
    async with hf, hf.worker(lease_seconds=3600):
        async with asyncio.timeout(10):
            while (await hf.store.workers())[0].heartbeat_at == (await hf.store.workers())[0].started_at:
                await asyncio.sleep(0.01)


def test_a_worker_is_heard_of_several_times_before_it_is_given_up() -> None:
    assert heart.LONGEST_PAUSE_SECONDS * 3 <= DEAD_AFTER / SECOND


async def test_a_heart_that_cannot_reach_the_store_says_so_once_and_goes_on_beating(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStore(MemoryStore())
    hf = application(store)
    async with hf, hf.worker(lease_seconds=LEASE_SECONDS):
        store.crashed.set()
        await _until(lambda: "cannot renew leases" in caplog.text)
        store.revive()
        with caplog.at_level(logging.WARNING):
            await _until(lambda: "renewing leases works again" in caplog.text)
        assert caplog.text.count("cannot renew leases") == 1


async def test_a_run_that_was_cancelled_is_noticed_by_a_beat_even_without_a_hint() -> None:
    store = FaultyStore(MemoryStore())
    hf = application(store)
    async with hf:
        worker = hf.worker(lease_seconds=LEASE_SECONDS)
        await worker.start()
        run = await hf.start("long.v1")
        await _until(lambda: worker.is_executing)
        assert worker._unlisten is not None
        worker._unlisten()
        await run.cancel()
        await _until(lambda: not worker.is_executing)
        assert (await run.info()).state is RunState.CANCELLED
        await worker.stop()


async def _until(is_reached: object) -> None:
    assert callable(is_reached)
    async with asyncio.timeout(10):
        while not is_reached():
            await asyncio.sleep(0.002)
