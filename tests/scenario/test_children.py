"""Children: runs that are started by runs, awaited or not, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ChildFailed, Context, InvalidRequest, Registry, RunFailed, RunState
from holdfast.testing.harness import Harness
from tests.stage import Stage, facts

app = Registry()


@app.workflow("child.add.v1")
async def add(ctx: Context, a: int, b: int = 1) -> int:
    await ctx.sleep(10)
    return await ctx.step("add", lambda: a + b)


@app.workflow("child.fail.v1")
async def fail(ctx: Context) -> None:
    raise ValueError("not today")


@app.workflow("child.wait.v1")
async def wait(ctx: Context) -> Any:
    return await ctx.receive("go")


@app.task("child.task.v1")
def double(n: int) -> int:
    return 2 * n


async def only_child(h: Harness, parent_id: str) -> Any:
    (child,) = [info async for info in h.list(parent_id=parent_id)]
    return child


@pytest.mark.every_store
async def test_call_starts_a_child_and_returns_its_result(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> list[Any]:
        return [
            await ctx.call(add, 1),
            await ctx.call(add, 1, 2, name="named", priority=5, tags={"a": "b"}, delay=5),
            await ctx.call("child.add.v1", {"a": 7}),
            await ctx.call(double, 4),
        ]

    local.include(app)
    async with stage.harness(local) as h:
        run = await h.start(parent)
        assert await run.result() == [2, 3, 8, 8]
        assert await facts(run) == [
            "child.add.v1 child done",
            "named child done",
            "child.add.v1#2 child done",
            "child.task.v1 child done",
        ]
        children = [info async for info in h.list(parent_id=run.id, tags={"a": "b"})]
        assert [(child.priority, child.result) for child in children] == [(5, 3)]


async def test_start_returns_a_handle_that_can_be_awaited_later_and_twice(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> list[Any]:
        first = await ctx.start(add, 1)
        second = await ctx.start(add, 10)
        await ctx.step("meanwhile", lambda: None)
        return [await second, await first, await first, *await asyncio.gather(first, second)]

    local.include(app)
    async with stage.harness(local) as h:
        assert await h.execute(parent) == [11, 2, 2, 2, 11]


async def test_children_run_at_the_same_time(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.call(add, n) for n in range(20))))

    local.include(app)
    async with stage.harness(local) as h:
        begun = h.now
        assert await h.execute(parent) == list(range(1, 21))
        assert (h.now - begun).total_seconds() == 10


async def test_a_failed_child_raises_in_its_parent_and_the_error_names_the_child_and_the_cause(stage: Stage) -> None:
    local = Registry()
    seen: list[tuple[Any, ...]] = []

    @local.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(fail)
        except ChildFailed as failure:
            seen.append((failure.run_id, failure.kind, str(failure.cause), failure.matches(ValueError)))
        await ctx.sleep(60)
        return seen[-1][0]  # type: ignore[no-any-return]

    local.include(app)
    async with stage.harness(local) as h:
        run = await h.start(parent)
        child_id = await run.result()
        assert (await only_child(h, run.id)).id == child_id
        assert set(seen) == {(child_id, "failed", "ValueError: not today", True)}


async def test_an_uncaught_failure_of_a_child_fails_the_parent_with_the_whole_chain_of_causes(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> None:
        await ctx.call(fail)

    @local.workflow
    async def grandparent(ctx: Context) -> None:
        await ctx.call(parent)

    local.include(app)
    async with stage.harness(local) as h:
        with pytest.raises(
            RunFailed,
            match=r"ChildFailed: ValueError: not today \(child run .*\) \(child run .* failed\)$",
        ):
            await h.execute(grandparent)


async def test_a_cancelled_child_raises_in_its_parent(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(wait)
        except ChildFailed as failure:
            return f"{failure.kind}: {failure.message}"
        return "?"

    local.include(app)
    async with stage.harness(local) as h:
        run = await h.start(parent)
        await h.settle()
        await h.run((await only_child(h, run.id)).id).cancel("out of stock")
        assert await run.result() == "cancelled: out of stock"


async def test_a_child_that_fails_with_an_error_called_cancelled_has_failed(stage: Stage) -> None:
    local = Registry()

    class Cancelled(Exception):
        """A user-defined error with the name of a built-in one."""

    @local.workflow
    async def child(ctx: Context) -> None:
        raise Cancelled("by the bank")

    @local.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(child)
        except ChildFailed as failure:
            return failure.kind
        return "?"

    async with stage.harness(local) as h:
        assert await h.execute(parent) == "failed"


async def test_a_handle_sends_messages_to_its_child_and_cancels_it(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> list[Any]:
        first, second = await ctx.start(wait), await ctx.start(wait)
        first.send("go", 42)
        await second.cancel()
        found: list[Any] = [await first]
        try:
            await second
        except ChildFailed as failure:
            found.append(failure.kind)
        return found

    local.include(app)
    async with stage.harness(local) as h:
        assert await h.execute(parent) == [42, "cancelled"]


async def test_a_child_that_is_not_awaited_outlives_its_parent_and_keeps_its_lineage(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> str:
        ctx.start(add, 5)  # not even the start is awaited
        return "gone"

    local.include(app)
    async with stage.harness(local) as h:
        run = await h.start(parent)
        assert await run.result() == "gone"
        child = await only_child(h, run.id)
        assert await h.run(child.id).result() == 6
        assert await facts(run) == ["child.add.v1 child started"]


@pytest.mark.parametrize(
    ("how", "options", "state"),
    [
        ("start", {}, RunState.SUSPENDED),
        ("start", {"on_close": "cancel"}, RunState.CANCELLED),
        ("call", {}, RunState.CANCELLED),
        ("call", {"on_close": "abandon"}, RunState.SUSPENDED),
    ],
)
@pytest.mark.parametrize("end", ["returns", "raises", "is cancelled"])
async def test_the_fate_of_a_child_at_the_end_of_its_parent_is_fixed_at_its_creation(
    stage: Stage, how: str, options: Any, state: RunState, end: str
) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> None:
        if how == "start":
            await ctx.start(wait, **options)
        else:
            calling = asyncio.create_task(ctx.call(wait, **options))
            await asyncio.sleep(0)
            assert not calling.done()
        await ctx.receive("end")
        if end == "raises":
            raise ValueError("over")

    local.include(app)
    async with stage.harness(local) as h:
        run = await h.start(parent)
        await h.settle()
        if end == "is cancelled":
            await run.cancel()
        else:
            await run.send("end")
        await h.settle()
        assert (await run.info()).state.is_end
        assert (await only_child(h, run.id)).state is state


async def test_a_call_that_is_cancelled_cancels_its_child(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await ctx.call(wait)
        except TimeoutError:
            await ctx.receive("end")
        return "done"

    local.include(app)
    async with stage.harness(local) as h:
        run = await h.start(parent)
        await h.advance(61)
        assert (await only_child(h, run.id)).state is RunState.CANCELLED
        await run.send("end")
        assert await run.result() == "done"


async def test_a_wait_for_a_handle_that_is_cancelled_leaves_the_child_alone_and_may_be_repeated(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> int:
        child = await ctx.start(add, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await child
        return await child

    local.include(app)
    async with stage.harness(local) as h:
        assert await h.execute(parent) == 2


async def test_cancelling_a_parent_cancels_its_grandchildren_too(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.call(wait)

    @local.workflow
    async def grandparent(ctx: Context) -> Any:
        return await ctx.call(parent)

    local.include(app)
    async with stage.harness(local) as h:
        run = await h.start(grandparent)
        await h.settle()
        child = await only_child(h, run.id)
        grandchild = await only_child(h, child.id)
        assert await run.cancel("never mind")
        await h.settle()
        assert (await h.run(child.id).info()).state is RunState.CANCELLED
        assert (await h.run(grandchild.id).info()).state is RunState.CANCELLED


async def test_a_child_that_ends_before_it_is_awaited_is_not_missed(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> int:
        child = await ctx.start(double, 4)
        await ctx.sleep(3600)
        return await child

    local.include(app)
    async with stage.harness(local) as h:
        assert await h.execute(parent) == 8


async def test_a_child_of_an_unknown_type_waits_for_a_worker_that_knows_it(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.call("child.add.v1", {"a": 1})

    async with stage.harness(local) as h:
        run = await h.start(parent)
        await h.advance(3600)
        assert (await run.info()).state is RunState.SUSPENDED
        child = await only_child(h, run.id)
        assert child.state is RunState.PENDING
    async with stage.harness(app) as elsewhere:
        assert await elsewhere.run(child.id).result() == 2
    async with stage.harness(local) as h:
        assert await h.run(run.id).result() == 2


async def test_bad_options_of_a_child_are_refused_in_the_parent(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def parent(ctx: Context, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest):
            ctx.start(add, 1, **options)
        with pytest.raises(InvalidRequest):
            await ctx.call(add, 1, **options)

    local.include(app)
    async with stage.harness(local) as h:
        for options in ({"priority": 300}, {"colour": 1}, {"name": "a/b"}, {"tags": {"a": 1}}, {"delay": -1}):
            await h.execute(parent, options)
        assert [info.type async for info in h.list(type="child.*")] == []


async def test_a_child_knows_its_parent(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def child(ctx: Context) -> str | None:
        return ctx.run.parent_id

    @local.workflow
    async def parent(ctx: Context) -> bool:
        return await ctx.call(child) == ctx.run.id

    async with stage.harness(local) as h:
        assert await h.execute(parent) is True
