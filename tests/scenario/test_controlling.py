"""Controlling: rewind, recover, fork, wake, and how waiting programs see the result."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import (
    ChildFailed,
    Context,
    Fatal,
    InvalidRequest,
    Registry,
    Retry,
    RunBusy,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunState,
    WaitTimeout,
)
from tests.stage import Stage


class World:
    """Records step executions and lets chosen steps fail."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.broken: set[str] = set()

    def do(self, name: str) -> str:
        self.done.append(name)
        if name in self.broken:
            raise Fatal(f"{name} is broken")
        return f"{name}{Counter(self.done)[name]}"


def locations(history: Any) -> list[str]:
    return [entry.location for entry in history]


# Rewinding


@pytest.mark.every_store
async def test_a_rewound_run_executes_again_what_follows_the_location(stage: Stage) -> None:
    app, world = Registry(), World()

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        return [await ctx.step(name, world.do, name) for name in ("a", "b", "c")]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == ["a1", "b1", "c1"]
        assert await run.rewind("b")
        assert await run.result() == ["a1", "b2", "c2"]
        assert world.done == ["a", "b", "c", "b", "c"]
        assert "rewound" in [fact.event for fact in await run.audit()]


async def test_messages_are_received_again_in_their_order_and_before_later_ones(stage: Stage) -> None:
    app = Registry()
    rounds: list[list[int]] = []

    @app.workflow
    async def shop(ctx: Context) -> list[int]:
        await ctx.step("begin", lambda: None)
        got = [await ctx.receive("n") for _ in range(2)]
        rounds.append(got)
        return [*got, await ctx.receive("n")]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        for number in (1, 2):
            await run.send("n", number)
        await h.settle()
        assert await run.rewind("receive:n")
        await run.send("n", 3)
        assert await run.result() == [1, 2, 3]
        assert set(map(tuple, rounds)) == {(1, 2)}


async def test_a_rewound_run_gets_its_event_again_and_then_the_next_one(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        return [await ctx.wait_event("news"), await ctx.wait_event("news")]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await h.emit("news", 1)
        await h.settle()
        assert await run.rewind("event:news")
        await h.settle()
        await h.emit("news", 2)
        assert await run.result() == [1, 2]


async def test_a_rewound_wait_has_its_full_timeout(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.step("ask", lambda: None)
        try:
            return str(await ctx.receive("answer", timeout=60))
        except WaitTimeout:
            return "nobody answered"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == "nobody answered"
        await h.advance(3600)
        assert await run.rewind("receive:answer")
        await h.advance(59)
        assert (await run.info()).state is RunState.SUSPENDED
        await run.send("answer", "yes")
        assert await run.result() == "yes"


async def test_a_run_rewound_to_its_first_sleep_sleeps_again(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> float:
        await ctx.sleep(60)
        return ctx.now().timestamp()

    async with stage.harness(app) as h:
        run = await h.start(shop)
        first = await run.result()
        await h.advance(3600)
        await run.rewind("sleep")
        assert await run.result() == first + 3600 + 60


async def test_a_rewound_run_starts_a_new_child_and_the_old_one_is_cancelled(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> Any:
        return await ctx.receive("go")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        await ctx.step("a", lambda: None)
        return await ctx.call(child)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        (old,) = [info async for info in h.list(type="child")]
        assert await run.rewind("a")
        await h.settle()
        new, old = [info async for info in h.list(type="child")]
        assert {old.state, new.state} == {RunState.CANCELLED, RunState.SUSPENDED}
        (alive,) = [info async for info in h.list(type="child", state="suspended")]
        await h.run(alive.id).send("go", 7)
        assert await run.result() == 7


async def test_a_second_end_of_a_rewound_child_is_not_delivered_to_its_parent(stage: Stage) -> None:
    app, world = Registry(), World()

    @app.workflow
    async def child(ctx: Context) -> Any:
        return await ctx.step("c", world.do, "c")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        got = await ctx.call(child)
        await ctx.receive("go")
        return got

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        (info,) = [info async for info in h.list(type="child")]
        await h.run(info.id).rewind("c")
        assert await h.run(info.id).result() == "c2"
        await run.send("go")
        assert await run.result() == "c1"


async def test_a_rewind_drops_a_whole_loop(stage: Stage) -> None:
    app, world = Registry(), World()

    @app.workflow
    async def shop(ctx: Context) -> str:
        from holdfast import Break, Continue

        async def body(ctx: Context, number: int) -> Any:
            await ctx.step("turn", world.do, f"t{number}")
            return Continue(number + 1) if number < 3 else Break(number)

        await ctx.step("a", world.do, "a")
        await ctx.loop("rounds", body, 1)
        return "end"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == "end"
        assert await run.rewind("rounds/~2/turn")
        assert await run.result() == "end"
        assert world.done == ["a", "t1", "t2", "t3", "t1", "t2", "t3"]


async def test_a_running_run_is_busy_and_force_takes_it_from_its_worker(stage: Stage) -> None:
    app = Registry()
    begun: list[int] = []
    opened = asyncio.Event()

    async def slow() -> int:
        begun.append(1)
        await opened.wait()
        return len(begun)

    @app.workflow
    async def shop(ctx: Context) -> int:
        await ctx.step("a", lambda: None)
        return await ctx.step("slow", slow)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        for refused in (run.rewind("a"), run.fork("a")):
            with pytest.raises(RunBusy, match="holds run"):
                await refused
        assert await run.rewind("a", force=True)
        await h.settle()
        assert len(begun) == 2
        opened.set()
        assert await run.result() == 2


async def test_a_location_that_does_not_exist_is_refused_with_those_that_do(stage: Stage) -> None:
    app, world = Registry(), World()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("a", world.do, "a")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await run.result()
        with pytest.raises(InvalidRequest, match="no entry at 'z'; it has 'a'"):
            await run.rewind("z")
        with pytest.raises(RunNotFound):
            await h.run("00000000-0000-7000-8000-000000000000").rewind("a")


# Recovering


async def test_a_recovered_run_retries_what_failed_and_nothing_else(stage: Stage) -> None:
    app, world = Registry(), World()
    world.broken = {"b"}

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        return [await ctx.step(name, world.do, name) for name in ("a", "b", "c")]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed, match="b is broken"):
            await run.result()
        world.broken = set()
        assert await run.recover()
        assert await run.result() == ["a1", "b2", "c1"]
        assert world.done == ["a", "b", "b", "c"]
        assert (await run.info()).attempt == 2


async def test_a_recovered_join_keeps_the_results_of_branches_that_succeeded(stage: Stage) -> None:
    app, world = Registry(), World()
    world.broken = {"y"}

    @app.workflow
    async def shop(ctx: Context) -> dict[str, Any]:
        def branch(name: str) -> Any:
            async def work(ctx: Context) -> str:
                return await ctx.step("work", world.do, name)

            return work

        return await ctx.join("all", {name: branch(name) for name in ("x", "y", "z")})

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed, match="JoinFailed"):
            await run.result()
        world.broken = set()
        assert await run.recover()
        assert await run.result() == {"x": "x1", "y": "y2", "z": "z1"}
        assert Counter(world.done) == {"x": 1, "y": 2, "z": 1}


async def test_a_recovered_map_reopens_only_the_children_that_failed(stage: Stage) -> None:
    app, world = Registry(), World()
    world.broken = {"2"}

    @app.workflow
    async def child(ctx: Context, number: int) -> str:
        return await ctx.step("work", world.do, str(number))

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        return await ctx.map(child, [1, 2, 3], limit=1)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed, match="JoinFailed"):
            await run.result()
        world.broken = set()
        assert await run.recover()
        assert await run.result() == ["11", "22", "31"]


async def test_a_run_whose_child_failed_recovers_that_child(stage: Stage) -> None:
    app, world = Registry(), World()
    world.broken = {"c"}

    @app.workflow
    async def child(ctx: Context) -> str:
        return await ctx.step("c", world.do, "c")

    @app.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.call(child)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed, match="c is broken"):
            await run.result()
        world.broken = set()
        assert await run.recover()
        assert await run.result() == "c2"
        assert [info.state async for info in h.list(type="child")] == [RunState.SUCCEEDED]


async def test_a_cancelled_run_is_recovered_and_so_is_the_child_that_went_with_it(stage: Stage) -> None:
    app, world = Registry(), World()

    @app.workflow
    async def child(ctx: Context) -> Any:
        await ctx.step("c", world.do, "c")
        return await ctx.receive("go")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        await ctx.step("a", world.do, "a")
        return await ctx.call(child)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await run.cancel("by mistake")
        with pytest.raises(RunCancelled):
            await run.result()
        assert await run.recover()
        await h.settle()
        (alive,) = [info async for info in h.list(type="child", state="suspended")]
        await h.run(alive.id).send("go", 1)
        assert await run.result() == 1
        assert Counter(world.done) == {"a": 1, "c": 1}


async def test_a_run_that_failed_by_a_wait_timeout_waits_again(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        await ctx.step("ask", lambda: None)
        return await ctx.receive("answer", timeout=60)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed, match="WaitTimeout"):
            await run.result()
        await h.advance(3600)
        assert await run.recover()
        await h.advance(30)
        await run.send("answer", 42)
        assert await run.result() == 42


async def test_an_undone_step_is_executed_again(stage: Stage) -> None:
    app, world = Registry(), World()
    world.broken = {"pay"}

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.step("reserve", world.do, "reserve", undo=lambda _: world.done.append("release"))
        return await ctx.step("pay", world.do, "pay")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed, match="pay is broken"):
            await run.result()
        world.broken = set()
        assert await run.recover()
        assert await run.result() == "pay2"
        assert world.done == ["reserve", "pay", "release", "reserve", "pay"]


async def test_an_undo_that_used_up_its_attempts_is_retried_after_a_recovery(stage: Stage) -> None:
    app, world = Registry(), World()
    world.broken = {"pay", "release"}

    def release(_: str) -> None:
        world.do("release")

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.step("reserve", world.do, "reserve", undo=release)
        return await ctx.step("pay", world.do, "pay")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state is RunState.BLOCKED
        assert "Blocked while it was rolling back by UndoFailed" in await run.explain()
        world.broken = {"pay"}
        assert await run.recover()
        with pytest.raises(RunFailed, match="pay is broken"):
            await run.result()
        assert world.done == ["reserve", "pay", "release", "release"]


async def test_a_live_run_is_not_recovered(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.receive("go")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.recover() is False
        assert await run.recover(force=True) is False
        await run.send("go", 1)
        assert await run.result() == 1
        assert await run.recover() is False


async def test_a_run_that_exceeded_its_time_limit_gets_its_full_limit_again(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        await ctx.step("a", lambda: None)
        return await ctx.receive("go")

    async with stage.harness(app) as h:
        run = await h.start(shop, max_run=60)
        await h.advance(120)
        assert (await run.info()).state is RunState.CANCELLED
        assert await run.recover()
        await h.advance(30)
        assert (await run.info()).state is RunState.SUSPENDED
        await run.send("go", 1)
        assert await run.result() == 1


# Forking


async def test_a_fork_with_a_patch_takes_another_path(stage: Stage) -> None:
    app, world = Registry(), World()

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        answer = await ctx.step("decide", world.do, "decide")
        done = [await ctx.step("left" if answer == "left" else "right", world.do, answer)]
        return [*done, await ctx.step("end", world.do, "end")]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == ["decide11", "end1"]
        fork = await run.fork("right", patch={"decide": "left"})
        assert fork.created
        assert fork.id != run.id
        assert await fork.result() == ["left1", "end2"]
        assert locations(await fork.history()) == ["decide", "left", "end"]
        assert await run.result() == ["decide11", "end1"]
        assert world.done.count("decide") == 1


async def test_a_fork_has_its_own_messages(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        first = await ctx.receive("n")
        return [first, await ctx.receive("n")]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await run.send("n", 1)
        await run.send("n", 2)
        await run.result()
        fork = await run.fork("receive:n#2", patch={"receive:n": 5})
        await fork.send("n", 3)
        assert await fork.result() == [5, 3]
        assert await run.result() == [1, 2]


async def test_a_fork_under_an_id_that_exists_is_that_run(stage: Stage) -> None:
    app, world = Registry(), World()

    @app.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step("a", world.do, "a")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await run.result()
        one = await run.fork("a", id="copy")
        two = await run.fork("a", id="copy")
        assert (one.created, two.created) == (True, False)
        assert await two.result() == "a2"


# Waking


async def test_a_blocked_run_is_woken_and_retried_at_once(stage: Stage) -> None:
    app = Registry()
    turns: list[int] = []

    @app.workflow
    async def shop(ctx: Context) -> int:
        turns.append(1)
        if len(turns) == 1:
            await asyncio.Event().wait()
        return len(turns)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state is RunState.BLOCKED
        assert await run.wake()
        await h.settle()
        assert (await run.info()).state is RunState.SUCCEEDED


async def test_a_wake_shortens_neither_a_sleep_nor_a_pause_between_attempts(stage: Stage) -> None:
    app = Registry()
    attempts: list[int] = []

    def fail() -> None:
        attempts.append(1)
        if len(attempts) < 2:
            raise OSError

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.sleep(60)
        await ctx.step("flaky", fail, retry=Retry(initial=60, max_delay=60, jitter=0))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.wake()
        await h.settle()
        assert len(attempts) == 0
        await h.advance(60)
        assert await run.wake()
        await h.settle()
        assert len(attempts) == 1
        await run.result()


# Results of reopened runs


async def test_callers_that_wait_for_a_reopened_run_get_its_new_end(stage: Stage) -> None:
    app, world = Registry(), World()
    world.broken = {"a"}

    @app.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step("a", world.do, "a")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        other = h.run(run.id)
        for handle in (run, other):
            with pytest.raises(RunFailed):
                await handle.result()
        world.broken = set()
        await h.run(run.id).recover()
        assert [await run.result(), await other.result()] == ["a2", "a2"]


async def test_a_child_recovered_by_hand_does_not_change_the_outcome_of_its_parent(stage: Stage) -> None:
    app, world = Registry(), World()
    world.broken = {"c"}

    @app.workflow
    async def child(ctx: Context) -> str:
        return await ctx.step("c", world.do, "c")

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            return await ctx.call(child)
        except ChildFailed:
            return str(await ctx.receive("advice"))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        (info,) = [info async for info in h.list(type="child")]
        world.broken = set()
        await h.run(info.id).recover()
        assert await h.run(info.id).result() == "c2"
        await run.send("advice", "go on")
        assert await run.result() == "go on"
