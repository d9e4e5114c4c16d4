"""A block loses no result: results fed before it are recorded, and only later requests of the code are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, Registry, Retry, RunHandle, RunState, StepFailed, SyncContext
from holdfast.runner.turn import Turn
from holdfast.testing.harness import Harness
from tests.stage import Stage, facts

Code = Callable[[Context], Awaitable[Any]]

RETRIES_SECONDS = 3600
"""Time in which a blocked run is retried several times."""


def one() -> int:
    return 1


def shop(code: Any, *, strict: bool = True) -> Registry:
    app = Registry()
    app.workflow("shop.v1", strict=strict)(code)

    @app.workflow("other.v1")
    async def other(ctx: Context) -> None:
        await ctx.receive("never")

    return app


async def violate() -> None:
    await asyncio.to_thread(print, "only a step may do this")


async def blocked(h: Harness, run: RunHandle[Any], kind: str = "WorkflowViolation") -> None:
    await h.settle()
    info = await run.info()
    assert info.state is RunState.BLOCKED, info
    assert info.error is not None
    assert info.error.type == kind, info.error


async def a_step(ctx: Context) -> None:
    await ctx.step("charge", one)
    await violate()


async def a_deadlock(ctx: Context) -> None:
    await ctx.step("charge", one)
    await asyncio.Event().wait()


def a_plain_function(ctx: SyncContext) -> None:
    ctx.step("charge", one)
    asyncio.get_event_loop().run_in_executor(None, print)


@pytest.mark.every_store
@pytest.mark.parametrize("code", [a_step, a_deadlock, a_plain_function], ids=lambda code: code.__name__)
async def test_a_blocked_run_never_executes_its_last_step_again(stage: Stage, code: Code) -> None:
    async with stage.harness(shop(code)) as h:
        run = await h.start("shop.v1")
        await blocked(h, run)
        await h.advance(RETRIES_SECONDS)
        await blocked(h, run)
        assert (await run.info()).attempt > 5
        assert h.executed == ["charge"]
        assert await facts(run) == ["charge step done"]


async def test_a_failure_that_was_fed_before_a_block_is_recorded(stage: Stage) -> None:
    async def code(ctx: Context) -> None:
        try:
            await ctx.step("charge", lambda: 1 / 0, retry=Retry(max_attempts=1))
        except StepFailed:
            await violate()

    async with stage.harness(shop(code)) as h:
        run = await h.start("shop.v1")
        await blocked(h, run)
        await h.advance(RETRIES_SECONDS)
        assert h.executed == ["charge"]
        assert await facts(run) == ["charge step failed"]


async def test_a_message_that_was_fed_before_a_block_is_read_once(stage: Stage) -> None:
    async def broken(ctx: Context) -> None:
        await ctx.receive("go")
        await violate()

    async def fixed(ctx: Context) -> list[Any]:
        return [await ctx.receive("go"), await ctx.receive("go")]

    async with stage.harness(shop(broken)) as h:
        run = await h.start("shop.v1")
        await run.send("go", 1)
        await blocked(h, run)
        await h.advance(RETRIES_SECONDS)
        assert await facts(run) == ["receive:go message done"]
        await run.send("go", 2)
    async with stage.harness(shop(fixed)) as h:
        assert await h.run(run.id).result() == [1, 2]


async def test_a_queue_event_that_was_fed_before_a_block_stays_with_its_run(stage: Stage) -> None:
    async def broken(ctx: Context) -> None:
        await ctx.wait_event("jobs")
        await violate()

    async def taker(ctx: Context) -> Any:
        return await ctx.wait_event("jobs", timeout=60)

    async with stage.harness(shop(broken)) as h:
        await h.topics.set("jobs", mode="queue")
        run = await h.start("shop.v1")
        await h.settle()
        await h.emit("jobs", 1)
        await blocked(h, run)
        await h.emit("jobs", 2)
        assert await facts(run) == ["event:jobs event done"]
    async with stage.harness(shop(taker)) as h:
        assert await h.run(run.id).result() == 1
        assert await h.execute("shop.v1") == 2


async def test_a_timer_that_fired_before_a_block_has_fired(stage: Stage) -> None:
    async def broken(ctx: Context) -> None:
        await ctx.sleep(60)
        await asyncio.sleep(60)
        await violate()

    async with stage.harness(shop(broken)) as h:
        run = await h.start("shop.v1")
        await h.advance(121)
        await blocked(h, run)
        assert await facts(run) == ["sleep timer done", "~timer timer done"]


async def test_the_end_of_a_child_that_was_fed_before_a_block_is_recorded(stage: Stage) -> None:
    async def broken(ctx: Context) -> None:
        await ctx.call("child.v1")
        await violate()

    app = shop(broken)

    @app.workflow("child.v1")
    async def child(ctx: Context) -> int:
        return await ctx.step("count", one)

    async with stage.harness(app) as h:
        run = await h.start("shop.v1")
        await blocked(h, run)
        await h.advance(RETRIES_SECONDS)
        assert h.executed == ["count"]
        assert await facts(run) == ["child.v1 child done"]


async def test_requests_of_the_code_after_the_last_result_are_dropped(stage: Stage) -> None:
    async def broken(ctx: Context) -> None:
        ctx.set_value("progress", "begun")
        ctx.version("way", 2)
        await ctx.step("charge", one)
        ctx.set_value("progress", "charged")
        ctx.version("way", 2)
        ctx.emit("news")
        ctx.start("other.v1")
        await violate()

    async def fixed(ctx: Context) -> str:
        ctx.version("way", 2)
        await ctx.step("charge", one)
        ctx.set_value("progress", "done")
        return "done"

    async with stage.harness(shop(broken)) as h:
        run = await h.start("shop.v1")
        await blocked(h, run)
        assert await facts(run) == ["version:way version done", "charge step done"]
        assert await run.value("progress") == "begun"
        assert [info.id async for info in h.list()] == [run.id]
    async with stage.harness(shop(fixed)) as h:
        assert await h.run(run.id).result() == "done"
        assert h.executed == []


async def awaits_a_child_that_it_just_started(ctx: Context) -> None:
    await ctx.step("charge", one)
    await ctx.emit("news", 1)
    handle = await ctx.start("other.v1")
    asyncio.create_task(handle.result())  # noqa: RUF006 - forgetting it is the point
    await asyncio.sleep(0)
    await violate()


async def awaits_a_child_that_it_started_before(ctx: Context) -> None:
    handle = await ctx.start("other.v1")
    await ctx.step("charge", one)
    await ctx.emit("news", 1)
    asyncio.create_task(handle.result())  # noqa: RUF006 - forgetting it is the point
    await asyncio.sleep(0)
    await violate()


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("code", "recorded", "types"),
    [
        (awaits_a_child_that_it_just_started, {"charge step done"}, ["shop.v1"]),
        (
            awaits_a_child_that_it_started_before,
            {"charge step done", "other.v1 child started"},
            ["other.v1", "shop.v1"],
        ),
    ],
)
async def test_requests_of_the_code_before_it_awaited_a_child_are_dropped_too(
    stage: Stage, code: Code, recorded: set[str], types: list[str]
) -> None:
    async with stage.harness(shop(code)) as h:
        run = await h.start("shop.v1")
        await blocked(h, run)
        await h.advance(RETRIES_SECONDS)

        assert h.executed == ["charge"]
        assert set(await facts(run)) == recorded
        assert sorted([info.type async for info in h.list()]) == types


async def test_results_fed_before_a_divergence_are_recorded(stage: Stage) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step("charge", one)
        await ctx.step("pack", one)
        await ctx.receive("go")

    async def broken(ctx: Context) -> None:
        await ctx.step("check", one)
        await ctx.step("charge", one)
        await ctx.call("other.v1", name="pack")

    async def fixed(ctx: Context) -> str:
        await ctx.step("check", one)
        await ctx.step("charge", one)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "done"

    async with stage.harness(shop(before)) as h:
        run = await h.start("shop.v1")
        await h.settle()
    async with stage.harness(shop(broken, strict=False)) as h:
        run = h.run(run.id)  # a handle of the closed harness would open its store again
        await run.send("go")
        await blocked(h, run, "HistoryDiverged")
        await h.advance(RETRIES_SECONDS)
        assert h.executed == ["check"]
        assert await facts(run) == ["charge step done", "pack step done", "check step done"]
    async with stage.harness(shop(fixed, strict=False)) as h:
        assert await h.run(run.id).result() == "done"
        assert h.executed == []


async def test_results_fed_before_an_error_of_driving_the_run_are_recorded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def code(ctx: Context) -> str:
        await ctx.step("charge", one)
        await ctx.step("ship", one)
        return "done"

    feed = Turn._feed_entry

    def feed_but(self: Turn, operation: Any, entry: Any) -> None:
        if operation.location == "ship":
            raise MemoryError("no room for another result")
        feed(self, operation, entry)

    async with stage.harness(shop(code)) as h:
        with monkeypatch.context() as broken:
            broken.setattr(Turn, "_feed_entry", feed_but)
            run = await h.start("shop.v1")
            await blocked(h, run, "MemoryError")
        assert await facts(run) == ["charge step done", "ship step done"]
        await run.recover()
        assert await run.result() == "done"
        assert h.executed == ["charge", "ship"]
