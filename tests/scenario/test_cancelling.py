"""Cancelling ends a run in every state."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Context, Registry, Retry, RunCancelled, RunFinished, RunState, step_info
from holdfast.testing.patience import wait_for
from tests.stage import Stage


def cancelled(info: Any) -> tuple[Any, ...]:
    return info.state, info.error and (info.error.type, info.error.message), info.ready_at, info.waits, info.worker


CANCELLED = (RunState.CANCELLED, ("Cancelled", "not needed"), None, (), None)


@pytest.mark.every_store
async def test_a_pending_run_is_cancelled_and_never_starts(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("never", lambda: None)

    async with stage.harness(app) as h:
        run = await h.start(shop, delay=60)
        assert await run.cancel("not needed")
        await h.advance(120)
        assert cancelled(await run.info()) == CANCELLED
        assert h.executed == []
        with pytest.raises(RunCancelled, match="not needed") as end:
            await run.result()
        assert (end.value.run_id, end.value.reason) == (run.id, "not needed")


@pytest.mark.parametrize("wait", ["sleep", "message", "event", "child", "retry"])
async def test_a_suspended_run_is_cancelled_whatever_it_waits_for(stage: Stage, wait: str) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(3600)

    def fail() -> None:
        raise OSError

    @app.workflow
    async def shop(ctx: Context) -> None:
        match wait:
            case "sleep":
                await ctx.sleep(3600)
            case "message":
                await ctx.receive("go")
            case "event":
                await ctx.wait_event("go")
            case "child":
                await ctx.call(child)
            case _:
                await ctx.step("flaky", fail, retry=Retry(initial=3600, max_delay=3600))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        assert await run.cancel("not needed")
        assert await h.emit("go") == 0
        with pytest.raises(RunFinished):
            await run.send("go")
        await h.advance(7200)
        assert cancelled(await run.info()) == CANCELLED
        assert [fact.event for fact in await run.audit()][-1] == "cancelled"


async def test_cancelling_a_running_run_cancels_its_bodies_and_discards_their_results(stage: Stage) -> None:
    app = Registry()
    ended: list[str] = []
    begun, release, told = threading.Event(), threading.Event(), threading.Event()

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("async")

    def thread_body() -> str:
        begun.set()
        wait_for("the run is cancelled", release)
        ended.append("thread knew" if step_info().is_cancelled else "?")
        told.set()
        return "ignored"

    @app.workflow
    async def shop(ctx: Context) -> None:
        try:
            await asyncio.gather(ctx.step("a", body), ctx.step("b", thread_body))
        finally:
            await ctx.step("in vain", lambda: ended.append("?"))

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await asyncio.to_thread(wait_for, "the thread has begun", begun)
        await h.settle()
        assert (await run.info()).state is RunState.RUNNING
        assert await run.cancel("not needed")
        await h.settle()
        release.set()
        await asyncio.to_thread(wait_for, "the thread has ended", told)
        await h.settle()
        assert ended == ["async", "thread knew"]
        assert cancelled(await run.info()) == CANCELLED
        assert list(await run.history()) == []


async def test_a_lingering_run_is_cancelled(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.sleep(0.5)
        await ctx.step("never", lambda: None)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state is RunState.RUNNING
        await run.cancel("not needed")
        await h.advance(60)
        assert cancelled(await run.info()) == CANCELLED
        assert h.executed == []


async def test_a_blocked_run_is_cancelled_and_not_retried(stage: Stage) -> None:
    app = Registry()
    turns: list[int] = []

    @app.workflow
    async def shop(ctx: Context) -> None:
        turns.append(1)
        await asyncio.Event().wait()

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state is RunState.BLOCKED
        await run.cancel("not needed")
        await h.advance(3600)
        assert cancelled(await run.info()) == CANCELLED
        assert turns == [1]


async def test_a_run_held_by_a_worker_that_died_is_cancelled_at_once(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("slow", asyncio.Event().wait)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        await h.crash_worker()
        assert await run.cancel("not needed")
        assert cancelled(await run.info()) == CANCELLED
        await h.start_worker()
        await h.advance(120)
        assert cancelled(await run.info()) == CANCELLED


async def test_cancelling_a_finished_run_changes_nothing_and_reports_that(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context, fails: bool) -> int:
        if fails:
            raise ValueError
        return 1

    async with stage.harness(app) as h:
        for fails, state in [(False, RunState.SUCCEEDED), (True, RunState.FAILED)]:
            run = await h.start(shop, fails)
            await h.settle()
            before = await run.info()
            assert await run.cancel() is False
            assert (await run.info()) == before
            assert before.state is state
        gone = await h.start(shop, False, delay=5)  # noqa: FBT003 - the workflow's own argument
        assert await gone.cancel("first")
        assert await gone.cancel("second") is False
        assert cancelled(await gone.info())[1] == ("Cancelled", "first")


async def test_cancelling_does_not_run_workflow_code_again(stage: Stage) -> None:
    app = Registry()
    ran: list[str] = []

    @app.workflow
    async def shop(ctx: Context) -> None:
        try:
            await ctx.receive("go")
        except asyncio.CancelledError:
            ran.append("cancelled")
            raise

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await run.cancel()
        await h.advance(3600)
    assert ran == []


async def test_a_cancel_that_races_with_the_end_leaves_one_end(stage: Stage) -> None:
    app = Registry()
    opened = asyncio.Event()

    @app.workflow
    async def shop(ctx: Context) -> int:
        await ctx.step("wait", opened.wait)
        return 1

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        opened.set()
        won = await run.cancel("race")
        await h.settle()
        info = await run.info()
        assert info.state is (RunState.CANCELLED if won else RunState.SUCCEEDED)
        ends = [fact.event for fact in await run.audit() if fact.event in ("succeeded", "cancelled", "failed")]
        assert ends == [info.state.value]
