"""Events: published on a topic, for every run that waits or starts to wait in time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, HoldfastError, InvalidRequest, Registry, RunState, WaitTimeout
from tests.stage import Stage, facts

app = Registry()


@app.workflow
async def listen(ctx: Context, topics: list[str]) -> list[Any]:
    return [await ctx.wait_event(topic) for topic in topics]


@app.workflow
async def pause_and_listen(ctx: Context, seconds: float, timeout: float | None) -> Any:
    await ctx.sleep(seconds)
    try:
        return await ctx.wait_event("news", timeout=timeout)
    except WaitTimeout as late:
        return str(late)


@pytest.mark.every_store
async def test_an_event_reaches_every_run_that_waits_and_the_emitter_gets_their_number(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await h.start_many(listen, [(["news"],)] * 3)
        other = await h.start(listen, ["weather"])
        await h.settle()
        assert await h.emit("news", {"headline": "x"}) == 3
        assert await h.emit("sports") == 0
        assert [await run.result() for run in runs] == [[{"headline": "x"}]] * 3
        assert (await other.info()).state is RunState.SUSPENDED


async def test_an_event_emitted_before_the_wait_is_not_lost(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(pause_and_listen, 3600.0, None)
        await h.settle()
        assert await h.emit("news", "early") == 0
        assert await run.result() == "early"


async def test_an_event_emitted_before_the_run_existed_is_not_delivered(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.emit("news", "old")
        await h.advance(1)
        run = await h.start(listen, ["news"])
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        await h.emit("news", "new")
        assert await run.result() == ["new"]


async def test_an_event_is_kept_for_seven_days(stage: Stage) -> None:
    week = timedelta(days=7).total_seconds()
    async with stage.harness(app) as h:
        within = await h.start(pause_and_listen, week - 60, 120.0)
        beyond = await h.start(pause_and_listen, week + 60, 120.0)
        await h.settle()
        await h.emit("news", "kept")
        assert await within.result() == "kept"
        assert (await beyond.result()).startswith("no event news came in time")


async def test_a_run_gets_each_event_once_and_in_order(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(listen, ["news"] * 4)
        await h.settle()
        for number in range(3):
            await h.emit("news", number)
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        await h.emit("news", 3)
        assert await run.result() == [0, 1, 2, 3]


async def test_two_waits_of_one_run_for_one_topic_get_two_events(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def both(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.wait_event("news"), ctx.wait_event("news")))

    async with stage.harness(local) as h:
        run = await h.start(both)
        await h.settle()
        assert await h.emit("news", 1) == 1
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        assert await h.emit("news", 2) == 1
        assert await run.result() == [1, 2]


async def test_two_events_at_once_for_two_waits_of_one_run_are_both_delivered(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def both(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.wait_event("news"), ctx.wait_event("news")))

    async with stage.harness(local) as h:
        run = await h.start(both)
        await h.settle()
        await h.crash_worker()
        await h.emit("news", 1)
        await h.emit("news", 2)
        await h.start_worker()
        assert await run.result() == [1, 2]


async def test_a_wait_that_timed_out_does_not_take_a_later_event(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def twice(ctx: Context) -> list[Any]:
        with pytest.raises(WaitTimeout):
            await ctx.wait_event("news", timeout=10)
        await ctx.sleep(10)
        return [await ctx.wait_event("news", timeout=10)]

    async with stage.harness(local) as h:
        run = await h.start(twice)
        await h.advance(15)
        await h.emit("news", "between")
        assert await run.result() == ["between"]
        assert await facts(run) == [
            "event:news event timed_out",
            "sleep timer done",
            "event:news#2 event done",
        ]


async def test_an_event_that_came_before_the_wait_is_received_even_with_a_timeout_of_zero(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(pause_and_listen, 60.0, 0.0)
        await h.settle()
        await h.emit("news", "there")
        assert await run.result() == "there"
        nothing = await h.start(pause_and_listen, 60.0, 0.0)
        assert (await nothing.result()).startswith("no event news came in time")


async def test_an_event_before_the_deadline_wins_even_if_the_worker_died_before_it_registered_the_wait(
    stage: Stage,
) -> None:
    async with stage.harness(app) as h:
        run = await h.start(pause_and_listen, 60.0, 10.0)
        await h.settle()
        await h.crash_worker()
        await h.advance(65)  # the sleep is over but no worker has seen it: the wait is not registered
        await h.emit("news", "in time")
        await h.advance(60)
        await h.start_worker()
        assert await run.result() == "in time"


async def test_a_deadline_before_the_event_wins_even_if_it_is_noticed_later(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(pause_and_listen, 0.0, 10.0)
        await h.settle()
        await h.crash_worker()
        await h.advance(11)
        await h.emit("news", "late")
        await h.advance(60)
        await h.start_worker()
        assert (await run.result()).startswith("no event news came in time")


async def test_a_workflow_emits_once_with_its_checkpoint(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def emitter(ctx: Context) -> None:
        ctx.emit("news", 1)
        await ctx.sleep(60)
        await ctx.emit("news", 2)

    local.include(app)
    async with stage.harness(local) as h:
        run = await h.start(listen, ["news", "news"])
        await h.settle()
        await h.start(emitter)
        assert await run.result() == [1, 2]


async def test_a_topic_may_be_any_printable_text_and_nothing_else(stage: Stage) -> None:
    async with stage.harness(app) as h:
        topic = "paid:17/ä # 'quoted' %"
        run = await h.start(listen, [topic])
        await h.settle()
        assert await h.emit(topic, 1) == 1
        assert await run.result() == [1]
        for bad in ("", "x" * 201, "nul\0", "line\nbreak"):
            with pytest.raises(InvalidRequest, match="topic"):
                await h.emit(bad)
        wrong = await h.start(listen, [""])
        with pytest.raises(HoldfastError, match=r"Blocked by InvalidRequest: .*topic"):
            await wrong.result()
