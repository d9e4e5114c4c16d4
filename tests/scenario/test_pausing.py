"""Pausing: a run stops until it is resumed, in any state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, InvalidRequest, Registry, RunState
from tests.stage import Stage

NOW = "2030-01-01 00:00:00 UTC"


@pytest.mark.every_store
async def test_a_sleeping_run_stays_paused_past_its_wake_time(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.sleep(60)
        return "awake"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.pause("holidays")
        assert not await run.pause("again")
        await h.advance(3600)
        assert (await run.info()).state is RunState.PAUSED
        assert await run.explain() == f"Paused since {NOW} (holidays); `holdfast resume {run.id}` lets it continue."
        assert await run.resume()
        assert not await run.resume()
        assert await run.result() == "awake"


async def test_a_reason_that_not_every_store_can_keep_is_refused(stage: Stage) -> None:
    async with stage.harness(Registry()) as h:
        run = await h.start("a.v1", {})

        with pytest.raises(InvalidRequest, match="reason= contains a NUL character"):
            await run.pause("no\0where")
        with pytest.raises(InvalidRequest, match="reason= contains a NUL character"):
            h.export(reason="no\0where")

        assert (await run.info()).state is RunState.PENDING


async def test_a_run_that_never_started_is_paused(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        return 1

    async with stage.harness(app) as h:
        run = await h.start(shop, delay=60)
        await run.pause()
        await h.advance(120)
        assert (await run.info()).state is RunState.PAUSED
        await run.resume()
        assert await run.result() == 1


async def test_a_running_step_is_finished_and_nothing_new_starts(stage: Stage) -> None:
    app = Registry()
    opened = asyncio.Event()
    done: list[str] = []

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        await ctx.step("slow", opened.wait)
        await ctx.step("next", lambda: done.append("next"))
        return done

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.pause("look first")
        await h.settle()
        info = await run.info()
        assert (info.state, done) == (RunState.RUNNING, [])
        assert "; it pauses as soon as no step of it executes (look first)." in await run.explain()
        opened.set()
        await h.settle()
        info = await run.info()
        assert (info.state, info.worker, done) == (RunState.PAUSED, None, [])
        assert [entry.location for entry in await run.history()] == ["slow"]
        assert "(look first)" in await run.explain()
        await run.resume()
        assert await run.result() == ["next"]
        assert [fact.event for fact in await run.audit()][1:5] == ["claimed", "pausing", "paused", "resumed"]


async def test_a_run_resumed_before_it_paused_simply_continues(stage: Stage) -> None:
    app = Registry()
    opened, other = asyncio.Event(), asyncio.Event()

    @app.workflow
    async def shop(ctx: Context) -> int:
        async def branch() -> None:
            await ctx.step("first", opened.wait)
            await ctx.step("second", lambda: None)

        await asyncio.gather(branch(), ctx.step("other", other.wait))
        return 1

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        await run.pause()
        await h.settle()
        opened.set()
        await h.settle()
        assert h.executed.count("+1/second") == 0
        assert await run.resume()
        await h.settle()
        assert h.executed.count("+1/second") == 1
        other.set()
        assert await run.result() == 1
        assert "paused" not in [fact.event for fact in await run.audit()]


async def test_a_lingering_run_is_paused(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        await ctx.sleep(0.5)
        return 1

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state is RunState.RUNNING
        await run.pause()
        await h.advance(60)
        assert (await run.info()).state is RunState.PAUSED
        await run.resume()
        assert await run.result() == 1


async def test_a_message_to_a_paused_run_is_there_when_it_is_resumed(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return [await ctx.receive("n"), await ctx.wait_event("news")]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await run.pause()
        await run.send("n", 1)
        await h.advance(60)
        assert (await run.info()).state is RunState.PAUSED
        await run.resume()
        await h.settle()
        await h.emit("news", 2)
        assert await run.result() == [1, 2]


async def test_a_pause_request_outlives_the_worker_that_got_it(stage: Stage) -> None:
    app = Registry()
    begun: list[int] = []

    async def slow() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("slow", slow)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        await h.crash_worker()
        assert await run.pause()
        await h.start_worker()
        await h.advance(60)
        assert ((await run.info()).state, len(begun)) == (RunState.PAUSED, 1)


async def test_paused_time_does_not_count_as_suspended_time(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.receive("go")

    async with stage.harness(app) as h:
        run = await h.start(shop, max_suspend=60)
        await h.settle()
        await run.pause()
        await h.advance(3600)
        await run.resume()
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        assert (
            "unless something arrives before, it is cancelled (max_suspend) at 2030-01-01 01:01:00 UTC."
            in await run.explain()
        )
        await run.send("go", 1)
        assert await run.result() == 1


async def test_a_paused_run_can_be_cancelled(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.receive("go")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await run.pause()
        assert await run.cancel("enough")
        assert (await run.info()).state is RunState.CANCELLED
        assert not await run.resume()
