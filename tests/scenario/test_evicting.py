"""Evicting: the worker that holds a run releases it at once, and any worker continues it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Context, Registry, RunState
from holdfast.core.news import Signal
from tests.stage import Stage


@pytest.mark.every_store
async def test_an_evicted_run_cancels_its_step_and_executes_it_again(stage: Stage) -> None:
    app = Registry()
    tries: list[str] = []

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        await ctx.step("done", lambda: tries.append("done"))

        async def slow() -> None:
            tries.append("slow")
            if tries.count("slow") > 1:
                return
            try:
                await asyncio.Event().wait()
            finally:
                tries.append("cleaned up")

        await ctx.step("slow", slow)
        return tries

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.evict(by="ada")
        assert await run.result() == ["done", "slow", "cleaned up", "slow"]

        facts = await run.audit()
        assert [fact.event for fact in facts][1:] == ["claimed", "evicted", "released", "claimed", "succeeded"]
        assert facts[2].by == "ada"
        assert (await run.info()).attempt == 1
        assert [entry.attempts for entry in await run.history()] == [1, 1]


async def test_a_run_that_no_worker_holds_is_not_evicted(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.receive("go")
        return "gone"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert not await run.evict()
        report = await h.runs(ids=[run.id]).evict()
        assert report.reasons == {"is held by no worker, or leaves its worker already": 1}
        await run.send("go")
        assert await run.result() == "gone"
        assert not await run.evict()


async def test_a_step_that_does_not_end_delays_an_eviction_by_the_grace_period_only(stage: Stage) -> None:
    app = Registry()
    may_end = asyncio.Event()
    begun: list[int] = []

    @app.workflow
    async def shop(ctx: Context) -> int:
        async def stubborn() -> int:
            begun.append(1)
            if len(begun) == 1:
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    await may_end.wait()
            return len(begun)

        return await ctx.step("stubborn", stubborn)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.evict()
        assert not await run.evict()
        await h.settle()
        assert (await run.info()).worker is not None
        assert begun == [1]
        await h.advance(60)
        assert begun == [1, 1]
        assert await run.result() == 2
        may_end.set()


async def test_the_end_of_an_evicted_step_is_not_recorded(stage: Stage) -> None:
    app = Registry()
    may_end = threading.Event()
    begun: list[int] = []

    @app.workflow
    async def shop(ctx: Context) -> int:
        def thread() -> int:
            begun.append(1)
            if len(begun) == 1:
                may_end.wait()
            return len(begun) * 10

        return await ctx.step("thread", thread)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.evict()
        await h.settle()
        assert (await run.info()).worker is not None
        may_end.set()
        assert await run.result() == 20
        assert len(begun) == 2


@pytest.mark.parametrize("is_evicted_first", [True, False])
async def test_an_evicted_run_that_is_to_pause_is_paused(stage: Stage, is_evicted_first: bool) -> None:
    app = Registry()
    begun: list[int] = []

    @app.workflow
    async def shop(ctx: Context) -> int:
        async def slow() -> int:
            begun.append(1)
            if len(begun) == 1:
                await asyncio.Event().wait()
            return len(begun)

        return await ctx.step("slow", slow)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        controls = [run.evict, run.pause]
        for control in controls if is_evicted_first else reversed(controls):
            assert await control()
        await h.settle()
        info = await run.info()
        assert (info.state, info.worker, begun) == (RunState.PAUSED, None, [1])
        assert await run.resume()
        assert await run.result() == 2


async def test_a_run_that_lingers_in_memory_is_evicted(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.sleep(0.5)
        return "awake"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.evict()
        await h.settle()
        assert "released" in [fact.event for fact in await run.audit()]
        assert await run.result() == "awake"


async def test_a_rollback_is_evicted_and_continued(stage: Stage) -> None:
    app = Registry()
    undone: list[Any] = []

    @app.workflow
    async def shop(ctx: Context) -> None:
        async def give_back(_: object) -> None:
            undone.append("begun")
            if len(undone) == 1:
                await asyncio.Event().wait()

        await ctx.step("charge", lambda: 1, undo=give_back)
        raise ValueError("no")

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state is RunState.ROLLING_BACK
        assert await run.evict()
        await h.settle()
        info = await run.info()
        assert (info.state, undone) == (RunState.FAILED, ["begun", "begun"])


async def test_a_hook_hears_of_an_eviction(stage: Stage) -> None:
    app = Registry()
    heard: list[Signal] = []
    may_end = asyncio.Event()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("slow", may_end.wait)

    async with stage.harness(app, has_endless_bodies=True) as h:
        h.on("run.evicted", "run.released")(heard.append)
        run = await h.start(shop)
        await h.settle()
        await run.evict()
        await h.settle()
        may_end.set()
        await run.result()
        assert {signal.name for signal in heard} == {"run.evicted", "run.released"}
