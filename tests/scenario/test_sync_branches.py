"""Branches, loops, maps and undo in `def` workflows: every parameter that takes a function takes a blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from holdfast import (
    Break,
    Continue,
    InvalidRequest,
    JoinFailed,
    RaceFailed,
    Registry,
    Retry,
    Rollback,
    RunFailed,
    SyncContext,
    WaitTimeout,
)
from tests.stage import Stage, facts

ONCE = Retry(max_attempts=1)


@dataclass
class Count:
    """A typed state."""

    done: int
    seen: list[str]


def fail() -> None:
    raise ValueError("no")


@pytest.mark.every_store
async def test_branches_block_concurrently_and_each_has_its_scope(stage: Stage) -> None:
    app = Registry()

    def worker(seconds: float, ctx: SyncContext) -> str:
        first = ctx.step("s", lambda: f"begun {seconds}")
        ctx.sleep(seconds)
        return f"{first}, {ctx.step('s', lambda: 'done')}"

    @app.workflow
    def shop(ctx: SyncContext) -> Any:
        began = ctx.now()
        found = ctx.join("work", {"slow": partial(worker, 60), "quick": partial(worker, 5)})
        return [found, (ctx.now() - began).total_seconds()]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == [{"slow": "begun 60, done", "quick": "begun 5, done"}, 60.0]
        assert sorted(await facts(run)) == [
            "work/quick/s step done",
            "work/quick/s#2 step done",
            "work/quick/sleep timer done",
            "work/slow/s step done",
            "work/slow/s#2 step done",
            "work/slow/sleep timer done",
        ]


async def test_failures_of_branches_are_collected(stage: Stage) -> None:
    app = Registry()

    def good(ctx: SyncContext) -> int:
        ctx.sleep(5)
        return 1

    def bad(ctx: SyncContext) -> int:
        ctx.step("fail", fail, retry=ONCE)
        return 2

    @app.workflow
    def shop(ctx: SyncContext) -> Any:
        with pytest.raises(JoinFailed) as joined:
            ctx.join("both", {"good": good, "bad": bad})
        with pytest.raises(RaceFailed):
            ctx.race("hopeless", {"bad": bad, "worse": bad})
        return [joined.value.results, sorted(joined.value.errors)]

    async with stage.harness(app) as h:
        assert await h.execute(shop) == [{"good": 1}, ["bad"]]


async def test_the_loser_of_a_race_is_cancelled_where_it_waits(stage: Stage) -> None:
    app = Registry()
    cancelled: list[str] = []

    def slow(ctx: SyncContext) -> str:
        try:
            return str(ctx.receive("never"))
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise

    def quick(ctx: SyncContext) -> str:
        ctx.sleep(5)
        return "quick"

    @app.workflow
    def shop(ctx: SyncContext) -> Any:
        won = ctx.race("who", {"slow": slow, "quick": quick})
        return [won, ctx.first_settled("again", {"slow": slow, "quick": quick}), ctx.step("after", lambda: 1)]

    async with stage.harness(app) as h:
        assert await h.execute(shop) == [["quick", "quick"], ["quick", "quick"], 1]
    assert set(cancelled) == {"slow"}


async def test_branches_within_branches_leave_memory_and_come_back(stage: Stage) -> None:
    app = Registry()

    def listen(name: str) -> Callable[[SyncContext], Any]:
        def branch(ctx: SyncContext) -> Any:
            try:
                return ctx.receive(name, timeout=86400)
            except WaitTimeout:
                return "nothing"

        return branch

    def pair(ctx: SyncContext) -> Any:
        return ctx.join("pair", {"a": listen("a"), "b": listen("b")})

    @app.workflow
    def shop(ctx: SyncContext) -> Any:
        return ctx.join("all", {"pair": pair, "c": listen("c")})

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await run.send("b", 2)
        await h.settle()
    async with stage.harness(app) as h:
        run = h.run(run.id)
        await run.send("c", 3)
        assert await run.result() == {"pair": {"a": "nothing", "b": 2}, "c": 3}


async def test_a_loop_has_typed_states_and_resumes_in_the_middle(stage: Stage) -> None:
    app = Registry()
    begun: list[int] = []

    def body(ctx: SyncContext, state: Count, last: int) -> Continue[Count] | Break[Count]:
        begun.append(state.done)
        state.seen.append(ctx.step("look", lambda: f"at {state.done}"))
        ctx.sleep(60)
        if state.done == last:
            return Break(state)
        return Continue(Count(state.done + 1, state.seen[-2:]))

    def other(ctx: SyncContext, left: int) -> Continue[int] | Break[str]:
        return Continue(left - 1) if left else Break(ctx.step("end", lambda: "over"))

    @app.workflow
    def shop(ctx: SyncContext) -> Any:
        last = ctx.loop("count", partial(body, last=6), Count(0, []), keep=2, every=2)
        assert isinstance(last, Count)
        return [last.done, last.seen, ctx.loop("down", other, 3)]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == [6, ["at 4", "at 5", "at 6"], "over"]
        assert len(h.executed) == 8
    assert 0 not in begun[-5:]


async def test_a_map_blocks_until_all_children_have_ended(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    def leaf(ctx: SyncContext, number: int) -> int:
        ctx.sleep(number)
        return number * number

    @app.workflow
    def shop(ctx: SyncContext) -> list[int]:
        return ctx.map(leaf, range(4), limit=2)

    async with stage.harness(app) as h:
        assert await h.execute(shop) == [0, 1, 4, 9]


async def test_a_run_continues_as_new_without_its_history(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    def shop(ctx: SyncContext, round: int) -> Any:
        ctx.step("work", lambda: round)
        if round < 3:
            return ctx.continue_as_new(round + 1)
        return [round, ctx.run.generation, ctx.receive("kept")]

    async with stage.harness(app) as h:
        run = await h.start(shop, 1)
        await run.send("kept", 7)
        result = await run.result()
        assert result[0] == 3
        assert result[2] == 7
        assert await facts(run) == ["work step done", "receive:kept message done"]


async def test_finished_steps_are_undone(stage: Stage) -> None:
    app = Registry()
    undone: list[str] = []

    @app.step(undo=undone.append)
    def book(what: str) -> str:
        return f"{what} booked"

    def flight(ctx: SyncContext) -> str:
        ctx.sleep(5)
        return book.blocking("flight")

    @app.workflow
    def trip(ctx: SyncContext) -> None:
        book.blocking("hotel")
        ctx.join("more", {"flight": flight})
        ctx.sleep(60)
        raise Rollback("no passport")

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="no passport"):
            await h.execute(trip)
    assert undone == ["flight booked", "hotel booked"]


@pytest.mark.parametrize("wrong", [5, "text", ["list"]])
async def test_an_invalid_branch_is_refused(stage: Stage, wrong: Any) -> None:
    app = Registry()

    async def asynchronous(ctx: Any) -> int:
        return 1

    @app.workflow
    def shop(ctx: SyncContext) -> str:
        with pytest.raises(InvalidRequest):
            ctx.join("x", wrong)
        with pytest.raises(InvalidRequest):
            ctx.join("x", {"a": wrong})
        with pytest.raises(JoinFailed, match="returned a coroutine"):
            ctx.join("x", {"a": asynchronous})
        return "refused"

    async with stage.harness(app) as h:
        assert await h.execute(shop) == "refused"
