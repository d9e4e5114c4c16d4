"""Operations within one checkpoint: on the run itself, on a child just created, at the very end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ChildFailed, Context, Registry, RunState, WaitTimeout
from tests.stage import Stage, facts

app = Registry()


@app.workflow("child.v1")
async def child(ctx: Context) -> Any:
    return await ctx.receive("go")


@pytest.mark.every_store
async def test_a_run_receives_an_event_that_it_emitted_before_it_waits(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def echo(ctx: Context) -> list[Any]:
        ctx.emit("news", 1)
        found = [await ctx.wait_event("news", timeout=60)]
        listening = asyncio.create_task(ctx.wait_event("news"))
        await ctx.step("meanwhile", lambda: None)
        await ctx.emit("news", 2)
        return [*found, await listening]

    async with stage.harness(local) as h:
        assert await h.execute(echo) == [1, 2]


async def test_a_run_may_send_to_itself(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def echo(ctx: Context) -> Any:
        ctx.send(ctx.run.id, "x", 1)
        ctx.send(ctx.run.id, "x", 2)
        return [await ctx.receive("x"), await ctx.receive("x")]

    async with stage.harness(local) as h:
        run = await h.start(echo)
        assert await run.result() == [1, 2]
        assert await facts(run) == [
            "send:x send done",
            "send:x#2 send done",
            "receive:x message done",
            "receive:x#2 message done",
        ]


async def test_a_message_to_a_child_that_is_just_being_created_reaches_it(stage: Stage) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def parent(ctx: Context) -> Any:
        children = [await ctx.start(child) for _ in range(3)]
        for number, started in enumerate(children):
            started.send("go", number)
        return list(await asyncio.gather(*children))

    async with stage.harness(local) as h:
        assert await h.execute(parent) == [0, 1, 2]


async def test_a_child_that_is_created_and_cancelled_at_once_never_runs(stage: Stage) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def parent(ctx: Context) -> str:
        started = await ctx.start(child)
        started.cancel()
        try:
            await started
        except ChildFailed as failure:
            return failure.kind
        return "?"

    async with stage.harness(local) as h:
        run = await h.start(parent)
        assert await run.result() == "cancelled"
        (info,) = [info async for info in h.list(parent_id=run.id)]
        assert [fact.event for fact in await h.run(info.id).audit()] == ["created", "cancelled"]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_child_that_is_created_with_the_end_of_its_parent_follows_its_close_policy(
    stage: Stage, *, fails: bool
) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def parent(ctx: Context) -> None:
        await ctx.start(child, on_close="cancel", name="follower")
        await ctx.start(child, name="free")
        if fails:
            raise ValueError("the end")

    async with stage.harness(local) as h:
        run = await h.start(parent)
        await h.settle()
        assert (await run.info()).state is (RunState.FAILED if fails else RunState.SUCCEEDED)
        states = sorted([info.state.value async for info in h.list(parent_id=run.id)])
        assert states == ["cancelled", "suspended"]


async def test_messages_events_and_children_of_the_last_checkpoint_take_effect(stage: Stage) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def last_words(ctx: Context, to: str) -> None:
        ctx.send(to, "go", "farewell")
        ctx.set_value("mood", "calm")
        ctx.emit("news", "gone")
        raise ValueError("the end")

    @local.workflow
    async def listener(ctx: Context) -> Any:
        return await ctx.wait_event("news")

    async with stage.harness(local) as h:
        receiver, listening = await h.start(child), await h.start(listener)
        await h.settle()
        run = await h.start(last_words, receiver.id)
        assert await receiver.result() == "farewell"
        assert await listening.result() == "gone"
        assert await run.value("mood") == "calm"


async def test_a_wait_that_is_over_before_it_is_written_costs_no_suspension(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def impatient(ctx: Context) -> list[str]:
        found = []
        for wait in (ctx.receive("x", timeout=0), ctx.receive("x", timeout=-5), ctx.wait_event("x", timeout=0)):
            try:
                await wait
            except WaitTimeout:
                found.append("late")
        return found

    async with stage.harness(local) as h:
        run = await h.start(impatient)
        assert await run.result() == ["late"] * 3
        assert [fact.event for fact in await run.audit()] == ["created", "claimed", "succeeded"]
