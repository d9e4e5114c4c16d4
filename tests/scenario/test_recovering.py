"""Recovering: a run whose branch failed continues, with the branches and children that the failure cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from holdfast import ChildFailed, Context, Fatal, Registry, RunFailed, RunState
from holdfast.testing.harness import Harness
from tests.stage import Stage

Branch = Callable[[Context], Coroutine[Any, Any, str]]


class World:
    """Records step executions and lets chosen steps fail."""

    def __init__(self, *broken: str) -> None:
        self.done: list[str] = []
        self.broken = set(broken)

    def do(self, name: str) -> str:
        self.done.append(name)
        if name in self.broken:
            raise Fatal(f"{name} is broken")
        return name

    def undo(self, name: str) -> None:
        self.done.append(f"undo {name}")


async def answer_children(h: Harness) -> None:
    """Send each waiting child the message it waits for."""
    await h.settle()
    for info in [info async for info in h.list(type="child", state="suspended")]:
        await h.run(info.id).send("go", 7)


async def states_of_children(h: Harness) -> Counter[RunState]:
    return Counter([info.state async for info in h.list(type="child")])


# Branches and children that the failure cancelled


async def join_with_call(ctx: Context, child: Any, pay: Branch) -> Any:
    return await ctx.join("both", {"call": lambda ctx: ctx.call(child), "pay": pay}, fail_fast=True)


async def join_with_map(ctx: Context, child: Any, pay: Branch) -> Any:
    return await ctx.join("both", {"call": lambda ctx: ctx.map(child, [(), ()]), "pay": pay}, fail_fast=True)


async def join_that_fails_late(ctx: Context, child: Any, pay: Branch) -> Any:
    async def inner(ctx: Context) -> Any:
        return await ctx.join("inner", {"pay": pay, "later": lambda ctx: ctx.sleep(5)})

    return await ctx.join("both", {"call": lambda ctx: ctx.call(child), "pay": inner}, fail_fast=True)


async def group_with_call(ctx: Context, child: Any, pay: Branch) -> Any:
    async with asyncio.TaskGroup() as tasks:
        called = tasks.create_task(ctx.call(child))
        tasks.create_task(pay(ctx))
    return {"call": called.result()}


async def group_with_map(ctx: Context, child: Any, pay: Branch) -> Any:
    async with asyncio.TaskGroup() as tasks:
        called = tasks.create_task(ctx.map(child, [(), ()]))
        tasks.create_task(pay(ctx))
    return {"call": called.result()}


async def group_that_sees_the_end(ctx: Context, child: Any, pay: Branch) -> Any:
    async def until_the_end() -> Any:
        started = await ctx.start(child)
        try:
            return await started
        except asyncio.CancelledError:
            started.cancel()
            with suppress(ChildFailed):
                await started
            await ctx.step("mourn", lambda: None)
            raise

    async with asyncio.TaskGroup() as tasks:
        called = tasks.create_task(until_the_end())
        tasks.create_task(pay(ctx))
    return {"call": called.result()}


@pytest.mark.parametrize(
    "shape",
    [
        join_with_call,
        join_with_map,
        join_that_fails_late,
        group_with_call,
        group_with_map,
        group_that_sees_the_end,
    ],
)
@pytest.mark.every_store
async def test_children_that_a_failure_had_cancelled_are_reopened(stage: Stage, shape: Any) -> None:
    app, world = Registry(), World("pay")

    @app.workflow
    async def child(ctx: Context) -> Any:
        return await ctx.receive("go")

    async def pay(ctx: Context) -> str:
        await ctx.sleep(1)
        return await ctx.step("pay", world.do, "pay")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await shape(ctx, child, pay)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed):
            await run.result()
        cancelled = await states_of_children(h)
        assert set(cancelled) == {RunState.CANCELLED}

        world.broken.clear()
        assert await run.recover()
        await answer_children(h)

        assert (await run.result())["call"] in (7, [7, 7])
        assert await states_of_children(h) == {RunState.SUCCEEDED: cancelled.total()}
        assert world.done == ["pay", "pay"]


async def test_entries_of_a_branch_after_its_cancellation_are_dropped(stage: Stage) -> None:
    app, world = Registry(), World("pay")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        async def wait() -> Any:
            try:
                return await ctx.receive("go")
            except asyncio.CancelledError:
                await ctx.step("cleanup", world.do, "cleanup")
                await ctx.step("report", world.do, "report")
                raise
            finally:
                ctx.emit("over", 1)

        async def pay() -> str:
            await ctx.sleep(1)
            return await ctx.step("pay", world.do, "pay")

        async with asyncio.TaskGroup() as tasks:
            waited, paid = tasks.create_task(wait()), tasks.create_task(pay())
        return [waited.result(), paid.result()]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed):
            await run.result()
        world.broken.clear()
        assert await run.recover()
        await run.send("go", 1)
        assert await run.result() == [1, "pay"]
        assert world.done == ["pay", "cleanup", "report", "pay"]


async def test_a_branch_keeps_entries_it_made_itself_after_another_branch_failed(stage: Stage) -> None:
    app, world = Registry(), World("pay")

    @app.workflow
    async def child(ctx: Context) -> int:
        await ctx.sleep(5)
        return 7

    @app.workflow
    async def shop(ctx: Context) -> Any:
        started = await ctx.start(child)

        async def wait(ctx: Context) -> Any:
            got = await started
            await ctx.step("note", world.do, "note")
            loser = {"slow": lambda ctx: ctx.call(child), "fast": lambda ctx: ctx.step("fast", world.do, "fast")}
            return [got, await ctx.race("race", loser)]

        async def pay(ctx: Context) -> str:
            return await ctx.step("pay", world.do, "pay")

        return await ctx.join("both", {"wait": wait, "pay": pay})

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed, match="pay is broken"):
            await run.result()
        children = await states_of_children(h)
        assert children == {RunState.SUCCEEDED: 1, RunState.CANCELLED: 1}
        world.broken.clear()
        assert await run.recover()
        assert await run.result() == {"wait": [7, ["fast", "fast"]], "pay": "pay"}
        assert Counter(world.done) == {"pay": 2, "note": 1, "fast": 1}
        assert await states_of_children(h) == children


async def test_a_child_cancelled_by_a_rewound_timeout_is_started_again(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> Any:
        return await ctx.receive("go")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(60):
                return await ctx.call(child)
        except TimeoutError:
            return "too late"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == "too late"
        assert await run.rewind("~timer")
        await answer_children(h)
        assert await run.result() == 7
        assert await states_of_children(h) == {RunState.CANCELLED: 1, RunState.SUCCEEDED: 1}


# Undone steps


async def until_a_time_out(ctx: Context, world: World) -> str:
    try:
        async with asyncio.timeout(60):
            await ctx.step("reserve", world.do, "reserve", undo=world.undo)
            await ctx.receive("name")
            await ctx.receive("payment")
    except TimeoutError:
        return "too late"
    return "in time"


async def beside_a_winner(ctx: Context, world: World) -> str:
    async def fast(ctx: Context) -> None:
        await ctx.receive("name")
        await ctx.sleep(5)

    async def slow(ctx: Context) -> None:
        await ctx.step("reserve", world.do, "reserve", undo=world.undo)
        await ctx.sleep(1)
        await ctx.sleep(60)

    winner, _ = await ctx.race("race", {"fast": fast, "slow": slow})
    return winner


async def before_a_sleep(ctx: Context, world: World) -> str:
    async with asyncio.timeout(10):
        await ctx.step("reserve", world.do, "reserve", undo=world.undo)
    await ctx.sleep(60)
    return "slept"


@pytest.mark.parametrize("shape", [until_a_time_out, beside_a_winner, before_a_sleep])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_undone_steps_are_executed_again_before_the_operations_that_followed_them(
    stage: Stage, shape: Any, is_cancelled: bool
) -> None:
    app, world = Registry(), World("pay")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        ended = await shape(ctx, world)
        if is_cancelled:
            await ctx.receive("go")
        return [ended, await ctx.step("pay", world.do, "pay")]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await run.send("name", "ann")
        await h.advance(70)
        if is_cancelled:
            await run.cancel("by mistake")
        await h.settle()
        assert (await run.info()).state.is_end
        first = list(world.done)
        assert "undo reserve" in first

        await h.advance(7200)
        world.broken.clear()
        assert await run.recover()
        await run.send("go")

        results = {until_a_time_out: "too late", beside_a_winner: "fast", before_a_sleep: "slept"}
        assert await run.result() == [results[shape], "pay"]
        assert world.done == [*first, "reserve", "pay"]


# Remaining time


async def in_a_time_out(ctx: Context, child: Any, pay: Branch) -> Any:
    async with asyncio.timeout(60):
        return await pay(ctx)


async def call_in_a_time_out(ctx: Context, child: Any, pay: Branch) -> Any:
    async with asyncio.timeout(60):
        return await ctx.call(child)


async def before_a_timer(ctx: Context, child: Any, pay: Branch) -> Any:
    _, value = await ctx.first_settled("first", {"pay": pay, "timer": lambda ctx: ctx.sleep(60)})
    return value


@pytest.mark.parametrize("shape", [in_a_time_out, call_in_a_time_out, before_a_timer])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_step_that_failed_under_a_timeout_is_retried_with_its_full_time(
    stage: Stage, shape: Any, is_first: bool
) -> None:
    app, world = Registry(), World("pay")

    async def pay(ctx: Context) -> str:
        return await ctx.step("pay", world.do, "pay")

    @app.workflow
    async def child(ctx: Context) -> str:
        return await pay(ctx)

    @app.workflow
    async def shop(ctx: Context) -> Any:
        if not is_first:
            await ctx.step("pack", world.do, "pack")
        return await shape(ctx, child, pay)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed):
            await run.result()
        await h.advance(3600)
        world.broken.clear()
        assert await run.recover()
        assert await run.result() == "pay"
        assert Counter(world.done) == {"pay": 2} | ({} if is_first else {"pack": 1})


async def around_several(ctx: Context, world: World) -> str:
    async with asyncio.timeout(60):
        await ctx.step("pack", world.do, "pack")
        return await ctx.step("pay", world.do, "pay")


async def against_a_sleep(ctx: Context, world: World) -> str:
    async def work(ctx: Context) -> str:
        await ctx.step("pack", world.do, "pack")
        return await ctx.step("pay", world.do, "pay")

    return str((await ctx.first_settled("first", {"work": work, "timer": lambda ctx: ctx.sleep(60)}))[1])


async def against_a_wait(ctx: Context, world: World) -> str:
    async def work(ctx: Context) -> str:
        await ctx.step("pack", world.do, "pack")
        return await ctx.step("pay", world.do, "pay")

    async def wait(ctx: Context) -> Any:
        return await ctx.receive("never", timeout=60)

    return str((await ctx.first_settled("first", {"work": work, "wait": wait}))[1])


@pytest.mark.parametrize("shape", [around_several, against_a_sleep, against_a_wait])
@pytest.mark.parametrize("is_rewound", [False, True])
async def test_a_timeout_that_had_started_before_keeps_its_remaining_time(
    stage: Stage, shape: Any, is_rewound: bool
) -> None:
    app, world = Registry(), World("pay")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await shape(ctx, world)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed):
            await run.result()
        await h.advance(3600)
        world.broken.clear()
        assert await (run.rewind((await run.history())[-1].location) if is_rewound else run.recover())
        assert await run.result() == "pay"
        assert world.done == ["pack", "pay", "pay"]


async def test_durations_continue_where_they_were_but_absolute_times_do_not(stage: Stage) -> None:
    app, world = Registry(), World("pay")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        moment = ctx.now() + timedelta(seconds=100)

        async def work(ctx: Context) -> None:
            await ctx.sleep(10)
            await ctx.step("pay", world.do, "pay")

        branches = {"work": work, "lie": lambda ctx: ctx.sleep(100), "lie_until": lambda ctx: ctx.sleep_until(moment)}
        await ctx.join("all", branches, fail_fast=True)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.advance(10)
        assert (await run.info()).state is RunState.FAILED
        await h.advance(50)
        world.broken.clear()
        assert await run.recover()
        await h.advance(40)  # the absolute time, 100 s after the start, has passed
        assert [entry.location for entry in await run.history()][-1] == "all/lie_until/sleep"
        await h.advance(49)
        assert (await run.info()).state is RunState.SUSPENDED
        await h.advance(1)
        assert (await run.info()).state is RunState.SUCCEEDED
