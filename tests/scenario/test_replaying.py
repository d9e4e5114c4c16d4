"""Replay: workflow code sees the same world each time, and a replay leaves no traces."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Registry, RunState
from tests.stage import Stage, complaints, facts


@pytest.mark.every_store
async def test_now_random_and_uuid_are_the_same_on_every_replay(stage: Stage) -> None:
    app = Registry()
    seen: list[tuple[Any, ...]] = []

    @app.workflow
    async def shop(ctx: Context) -> int:
        begun = (ctx.now(), ctx.random.random(), ctx.uuid(), ctx.random.choice("abcdef"))
        await ctx.step("a", lambda: None)
        after = (ctx.now(), ctx.random.random(), ctx.uuid())
        await ctx.sleep(3600)
        await ctx.receive("go")
        seen.append((*begun, *after))
        await ctx.sleep(3600)
        return len(seen)

    async with stage.harness(app) as h:
        begun = h.now
        run = await h.start(shop)
        await h.advance(7200)
        random.seed(5)
        await run.send("go")
        assert await run.result() >= 2
        assert len(set(seen)) == 1
        assert seen[0][0] == begun
        other = await h.start(shop)
        await other.send("go")
        await other.result()
        assert len(set(seen)) == 2
        assert seen[-1][1] != seen[0][1]
        assert seen[-1][2] != seen[0][2]


async def test_now_is_the_time_of_the_last_fact_fed_to_the_run(stage: Stage) -> None:
    """T6: before the first fact it is the first claim, afterwards the stamp of the last fact fed."""
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> list[float]:
        first = ctx.now()
        times = []
        for _ in range(2):
            await ctx.sleep(100)
            times.append((ctx.now() - first).total_seconds())
        await ctx.receive("go")
        times.append((ctx.now() - first).total_seconds())
        await ctx.sleep_until(first)
        times.append((ctx.now() - first).total_seconds())
        await ctx.sleep_until(datetime(2031, 1, 1))  # noqa: DTZ001 - without a zone it is UTC
        times.append((ctx.now() - datetime(2031, 1, 1, tzinfo=UTC)).total_seconds())
        return times

    async with stage.harness(app) as h:
        run = await h.start(shop, delay=1000)
        await h.advance(1500)
        await run.send("go")
        assert await run.result() == [100, 200, 500, 500, 0]


async def test_a_sleep_of_a_delayed_run_counts_from_its_first_claim(stage: Stage) -> None:
    """T6: the instant of the first claim is time zero, even if no worker ran for a while."""
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> float:
        await ctx.sleep(60)
        return ctx.now().timestamp()

    async with stage.harness(app) as h:
        await h.stop_worker()
        run = await h.start(shop)
        await h.advance(1000)
        claimed = h.now
        await h.start_worker()
        assert await run.result() == claimed.timestamp() + 60


async def test_the_logger_is_silent_while_replaying_and_names_the_run(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> int:
        await ctx.sleep(5)
        return 1

    @app.workflow
    async def shop(ctx: Context) -> None:
        ctx.logger.info("begun")
        started = await ctx.start(child)
        ctx.logger.info("child started")
        await ctx.step("a", lambda: None)
        ctx.logger.info("step %s", "done")
        await ctx.sleep(1)
        ctx.logger.info("slept")
        await started
        ctx.logger.info("child done")
        await ctx.receive("go")
        ctx.logger.warning("told to go")
        await ctx.receive("end")
        ctx.logger.info("ended")

    with caplog.at_level(logging.INFO, logger="holdfast.workflow"):
        async with stage.harness(app) as h:
            run = await h.start(shop)
            await h.advance(60)
            await run.send("go")
            await h.settle()
            await run.send("end")
            await run.result()
    records = [record for record in caplog.records if record.name == "holdfast.workflow"]
    assert {record.__dict__["run_id"] for record in records} == {run.id}
    texts = [record.getMessage() for record in records]
    at_the_frontier = ["begun", "child started", "step done", "slept", "child done", "told to go", "ended"]
    assert texts == at_the_frontier


async def test_a_published_value_can_be_read_by_all_and_an_old_one_never_comes_back(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> int:
        return 1

    @app.workflow
    async def shop(ctx: Context) -> str:
        started = await ctx.start(child)
        ctx.set_value("progress", {"percent": 0})
        await ctx.step("a", lambda: None)
        await ctx.set_value("progress", {"percent": 50})
        await ctx.sleep(60)
        await started
        ctx.set_value("progress", {"percent": 90})
        ctx.set_value("other", None)
        await ctx.receive("go")
        await ctx.receive("end")
        return "done"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.value("progress") == {"percent": 50}
        assert await run.value("other", "default") == "default"
        await h.advance(60)
        assert await run.value("progress") == {"percent": 90}
        await h.crash_worker()
        await h.start_worker()
        await run.send("go")
        await h.settle()
        assert await run.value("progress") == {"percent": 90}
        assert await run.value("other", "default") is None
        await run.send("end")
        assert await run.result() == "done"
        assert await run.value("progress") == {"percent": 90}


async def test_a_value_published_by_a_lingering_run_does_not_keep_the_worker_busy(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        for number in range(3):
            ctx.set_value("n", number)
        await asyncio.sleep(0.5)
        return "done"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.value("n") == 2
        assert await run.result() == "done"


async def test_finally_blocks_may_run_at_each_suspension_and_leave_no_trace(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """T7: user `finally` blocks run, a durable operation in them never completes, nothing is logged or recorded."""
    app = Registry()
    ran: list[str] = []

    @app.workflow
    async def shop(ctx: Context) -> str:
        for wait in (ctx.sleep(60), ctx.receive("go"), ctx.wait_event("news"), ctx.step("s", lambda: 1)):
            try:
                await wait
            finally:
                ran.append("finally")
                ctx.logger.warning("in a finally")
                await ctx.step("clean up", ran.append, "step")
                ran.append("after the step")
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(guarded(ctx))
        return "done"

    async def guarded(ctx: Context) -> None:
        try:
            await ctx.sleep(60)
        except BaseException:
            ran.append("except")
            ctx.send("nobody", "x")
            ctx.emit("x")
            ctx.set_value("x", 1)
            raise
        finally:
            ran.append("branch finally")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.advance(60)
        await run.send("go")
        await h.emit("news")
        assert await run.result() == "done"
        assert await facts(run) == [
            "sleep timer done",
            "clean up step done",
            "receive:go message done",
            "clean up#2 step done",
            "event:news event done",
            "clean up#3 step done",
            "s step done",
            "clean up#4 step done",
            "+1/sleep timer done",
            "+2/sleep timer done",
            "+3/sleep timer done",
        ]
        assert h.executed == ["clean up", "clean up#2", "clean up#3", "s", "clean up#4"]
    gc.collect()
    assert ran.count("step") == 4
    assert ran.count("finally") > 4
    logged = [record.getMessage() for record in caplog.records if record.name == "holdfast.workflow"]
    assert logged == ["in a finally"] * 4
    assert set(complaints(caplog)) == {"in a finally"}


async def test_leaving_memory_raises_and_logs_nothing_whatever_the_code_catches(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """T7: coroutines are closed explicitly, in a bounded number of rounds, even if they refuse to end."""
    app = Registry()

    @app.workflow
    async def stubborn(ctx: Context) -> str:
        async def hardly_ends() -> None:
            for _ in range(10):
                try:
                    await ctx.receive("never")
                except BaseException:  # noqa: BLE001, S112 - that is the point
                    continue

        async def numbers() -> Any:
            try:
                for number in range(10):
                    yield number
                    await ctx.sleep(60)
            finally:
                await ctx.sleep(1)

        deaf = asyncio.create_task(hardly_ends())
        unused = asyncio.create_task(ctx.sleep(3600))
        unstarted = [ctx.step("unused", lambda: 1), ctx.sleep(5)]
        async for number in numbers():
            if number == 2:
                break
        for one in unstarted:
            one.close()
        deaf.cancel()
        unused.cancel()
        await ctx.receive("go")
        return "done"

    async with stage.harness(app) as h:
        run = await h.start(stubborn)
        await h.advance(600)
        assert (await run.info()).state is RunState.SUSPENDED
        await run.cancel()
    gc.collect()
    assert complaints(caplog) == []


async def test_a_run_of_years_with_hundreds_of_waits_replays_to_the_same_end(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def subscription(ctx: Context) -> int:
        total = 0
        for month in range(60):
            await ctx.sleep(timedelta(days=30))
            total += await ctx.step("charge", lambda paid: paid, month)
        return total

    async with stage.harness(app) as h:
        begun = h.now
        assert await h.execute(subscription) == sum(range(60))
        assert h.now - begun == timedelta(days=30 * 60)
        assert len(h.executed) == 60
