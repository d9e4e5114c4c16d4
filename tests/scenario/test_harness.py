"""The harness and the faulty store, with which users test their workflows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Holdfast, InvalidRequest, Registry, RunFailed, RunState, StoreUnavailable
from holdfast.core.commands import RetireWorker
from holdfast.core.questions import CountRuns, VerdictsOn
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from holdfast.testing.patience import guarded

hf = Holdfast("memory://")


@hf.step
async def charge(cents: int) -> str:
    raise AssertionError("a test must never charge anybody")


@hf.workflow
async def checkout(ctx: Context, cents: int) -> str:
    await ctx.sleep(timedelta(days=30))
    paid = await charge(cents)
    await ctx.step("mail", print, "never printed in tests either")
    return paid


async def test_steps_are_replaced_by_values_functions_and_errors() -> None:
    async with Harness(hf) as h:
        h.stub("charge", returns="paid")
        h.stub("mail")
        assert await h.execute(checkout, 5) == "paid"
        h.stub("charge", lambda cents: f"paid {cents}")
        assert await h.execute(checkout, 6) == "paid 6"
        h.stub("charge", raises=LookupError("no card"))
        with pytest.raises(RunFailed, match="no card"):
            await h.execute(checkout, 7)
        with pytest.raises(InvalidRequest, match="only one of them"):
            h.stub("charge", print, returns=5)
        assert h.executed[:2] == ["charge", "mail"]


async def test_time_passes_only_while_a_test_waits_or_advances_it() -> None:
    start = datetime(2031, 5, 1, tzinfo=UTC)
    async with Harness(hf, start=start) as h:
        h.stub("charge", returns="paid")
        h.stub("mail")
        run = await h.start(checkout, 5)
        await h.settle()
        assert h.now == start
        await h.advance(timedelta(days=29))
        assert (await run.info()).state is RunState.SUSPENDED
        await h.advance(timedelta(days=1))
        assert (await run.info()).state is RunState.SUCCEEDED
        assert h.now == start + timedelta(days=30)
        assert await h.skip() is False


async def test_a_run_that_can_never_end_does_not_hang_the_test() -> None:
    app = Registry()

    @app.workflow
    async def forever(ctx: Context) -> None:
        await ctx.receive("never")

    async with Harness(app) as h:
        run = await h.start(forever)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.02)


async def test_time_passes_despite_a_body_that_outlasts_the_patience_of_the_harness() -> None:
    app = Registry()

    @app.workflow
    async def impatient(ctx: Context) -> str:
        try:
            async with asyncio.timeout(3600):
                await ctx.step("slow", asyncio.Event().wait)
        except TimeoutError:
            return "gave up"
        return "?"

    async with Harness(app, patience_seconds=0.01) as h:
        assert await h.execute(impatient) == "gave up"


async def test_the_runs_of_a_crashed_worker_are_taken_over_when_its_leases_end() -> None:
    app = Registry()
    opened = asyncio.Event()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.step("slow", opened.wait)
        return "done"

    async with Harness(app, patience_seconds=0.01) as h:
        run = await h.start(shop)
        await h.settle()
        begun = h.now
        await h.crash_worker()
        opened.set()
        await h.start_worker()
        assert await run.result() == "done"
        assert h.now - begun == timedelta(seconds=30)
        assert h.executed == ["slow", "slow"]


async def test_a_worker_that_stops_gives_its_runs_back_at_once() -> None:
    async with Harness(hf) as h:
        run = await h.start(checkout, 5)
        await h.settle()
        await h.stop_worker()
        await h.stop_worker()
        assert (await run.info()).worker is None


async def test_a_faulty_store_fails_before_or_after_the_nth_call() -> None:
    store = FaultyStore(MemoryStore(clock=VirtualClock()))
    store.fail(1, when="before")
    store.fail(2, when="after")
    for told in ("fault before call 1", "the answer was lost"):
        with pytest.raises(StoreUnavailable, match=told):
            await store.changes(VerdictsOn(holdings=[]))
    assert (await store.changes(VerdictsOn(holdings=[]))).verdicts == ()
    assert store.calls == ["look"] * 3


async def test_a_crashed_store_lets_no_worker_through_until_it_is_revived() -> None:
    store = FaultyStore(MemoryStore(clock=VirtualClock()))
    store.crash(1, when="before")
    for told in ("fault before call 1", "this worker has crashed"):
        with pytest.raises(StoreUnavailable, match=told):
            await store.apply(RetireWorker(worker_id="w"))
    assert store.crashed.is_set()
    assert await store.stats(CountRuns()) == {}
    store.revive()
    await store.apply(RetireWorker(worker_id="w"))


async def test_a_frozen_store_stands_still_until_it_thaws() -> None:
    store = FaultyStore(MemoryStore(clock=VirtualClock()))
    store.freeze("look")
    await store.apply(RetireWorker(worker_id="w"))
    looking = asyncio.create_task(store.changes(VerdictsOn(holdings=[])))
    await guarded("the worker is frozen", store.frozen.wait())
    retiring = asyncio.create_task(store.apply(RetireWorker(worker_id="w")))
    await asyncio.sleep(0.001)
    assert not looking.done()
    assert not retiring.done()
    store.thaw()
    await looking
    await retiring
