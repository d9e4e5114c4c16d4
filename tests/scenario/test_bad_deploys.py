"""Bad deploys under live runs: no step runs twice or is undone, and the code that wrote a history heals its run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Break, Context, Continue, Registry, RunCancelled, RunHandle, RunState, SyncContext, step_info
from holdfast.app import session_of
from holdfast.core.questions import FindOrphans
from holdfast.testing.harness import Harness
from tests.stage import Stage, facts

RETRIES_SECONDS = 3600
"""Time in which a blocked run is retried several times."""


class World:
    """Counts of executed steps and undo functions, by run and location."""

    def __init__(self) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        self.undone: Counter[tuple[str, str]] = Counter()

    def do(self, name: str) -> str:
        info = step_info()
        self.done[info.run_id, info.location] += 1
        return name

    def undo(self, name: str) -> None:
        self.undone[step_info().run_id, name] += 1

    def check_once(self) -> None:
        """Check that each step was executed exactly once, and that none was undone."""
        assert set(self.done.values()) == {1}, self.done
        assert not self.undone


class Shop:
    """An application whose workflow executes these operations in order. `?name` waits for a message."""

    def __init__(self, world: World, operations: Sequence[str]) -> None:
        self.world = world
        self.operations = operations

    def registry(self) -> Registry:
        app = Registry()

        @app.workflow("order.v1")
        async def order(ctx: Context) -> list[Any]:
            return [await self._do(ctx, operation) for operation in self.operations]

        @app.workflow("plain.v1")
        def plain(ctx: SyncContext) -> list[Any]:
            return [
                ctx.receive(name[1:]) if name[0] == "?" else ctx.step(name, self.world.do, name)
                for name in self.operations
                if name[0] == "?" or name.isalpha()
            ]

        @app.workflow("parcel.v1")
        async def parcel(ctx: Context) -> str:
            return await ctx.step("label", self.world.do, "label")

        return app

    async def _do(self, ctx: Context, operation: str) -> Any:
        name = operation.strip("?~&|>%")
        match operation[0]:
            case "?":
                return await ctx.receive(name)
            case "~":
                return await ctx.sleep(60)
            case "&":
                return await ctx.join(name, {"left": self._branch("ab"), "right": self._branch("c")})
            case "|":
                return await ctx.join(name, {"left": self._branch("ba"), "right": self._branch("c")})
            case ">":
                return await ctx.call("parcel.v1", name=name)
            case "%":
                return await ctx.loop(name, self._turn, 0, keep=1, every=1)
            case "+":
                steps = (ctx.step(each, self.world.do, each) for each in ("sms", "mail"))
                return list(await asyncio.gather(*steps))
            case _:
                return await ctx.step(name, self.world.do, name, undo=self.world.undo)

    def _branch(self, names: str) -> Any:
        async def branch(ctx: Context) -> list[str]:
            return [await ctx.step(name, self.world.do, name) for name in names]

        return branch

    async def _turn(self, ctx: Context, count: int) -> Continue[int] | Break[int]:
        await ctx.step("turn", self.world.do, "turn")
        return Break(count) if count == 3 else Continue(count + 1)


ORIGINAL = ("charge", "?first", "reserve", "&join", "+", "%loop", ">call", "~nap", "pack", "?second", "ship")


def renamed(old: str, new: str) -> tuple[str, ...]:
    return tuple(new if operation == old else operation for operation in ORIGINAL)


def inserted(new: str, before: str) -> tuple[str, ...]:
    place = ORIGINAL.index(before)
    return (*ORIGINAL[:place], new, *ORIGINAL[place:])


def removed(old: str) -> tuple[str, ...]:
    return tuple(operation for operation in ORIGINAL if operation != old)


def swapped(one: str, other: str) -> tuple[str, ...]:
    return tuple({one: other, other: one}.get(operation, operation) for operation in ORIGINAL)


EARLY = {
    "rename a step": renamed("charge", "bill"),
    "insert a step": inserted("check", "charge"),
    "insert a wait": inserted("?third", "charge"),
    "remove a step": removed("charge"),
    "swap a step with a wait": swapped("charge", "?first"),
    "swap two steps": swapped("charge", "reserve"),
}
"""Changes to operations that every live run has recorded."""

LATE = {
    "rename a later step": renamed("pack", "wrap"),
    "rename a wait": renamed("?first", "?other"),
    "rename a join": renamed("&join", "&joined"),
    "rename a loop": renamed("%loop", "%looped"),
    "rename a child": renamed(">call", ">called"),
    "insert a sleep": inserted("~nap", "reserve"),
    "insert a child": inserted(">before", "+"),
    "insert a loop": inserted("%before", "pack"),
    "remove a wait": removed("?first"),
    "remove a join": removed("&join"),
    "remove a sleep": removed("~nap"),
    "swap a join with a step": swapped("reserve", "&join"),
    "swap a loop with a child": swapped("%loop", ">call"),
    "swap steps of a branch": renamed("&join", "|join"),
}
"""Changes to operations that only runs with a first message have recorded."""


async def live_runs(stage: Stage, world: World, type: str = "order.v1", *, is_late: bool) -> list[str]:
    """Start runs with the original code; they wait for their second message if `is_late`, else for their first."""
    async with stage.harness(Shop(world, ORIGINAL).registry()) as h:
        runs = [await h.start(type) for _ in range(3)]
        for run in runs if is_late else []:
            await run.send("first", 1)
        await h.advance(120)
        for run in runs:
            assert (await run.info()).state is RunState.SUSPENDED, await run.info()
    return [run.id for run in runs]


async def send_all(h: Harness, run_ids: Sequence[str], *, is_late: bool) -> None:
    for run_id in run_ids:
        if not is_late:
            await h.run(run_id).send("first", 1)
        await h.run(run_id).send("second", 2)


async def check_blocked(h: Harness, run_id: str) -> None:
    info = await h.run(run_id).info()
    assert info.state is RunState.BLOCKED, info
    assert info.error is not None
    assert info.error.type == "HistoryDiverged"


async def results(h: Harness, run_ids: Sequence[str]) -> list[Any]:
    """Return the results of runs, after enough time for blocked ones to be retried."""
    await h.advance(RETRIES_SECONDS)
    return [await h.run(run_id).result() for run_id in run_ids]


EXPECTED = [
    *(
        "charge",
        1,
        "reserve",
        {"left": ["a", "b"], "right": ["c"]},
        ["sms", "mail"],
        3,
        "label",
        None,
        "pack",
        2,
        "ship",
    ),
]
changes = pytest.mark.parametrize("change", [*EARLY, *LATE])


@changes
async def test_a_bad_deploy_executes_nothing_and_is_healed_by_the_code_that_wrote_the_history(
    stage: Stage, change: str
) -> None:
    world, is_late = World(), change in LATE
    run_ids = await live_runs(stage, world, is_late=is_late)
    done, told = world.done.copy(), [await history_of(stage, run_id) for run_id in run_ids]
    async with stage.harness(Shop(world, (EARLY | LATE)[change]).registry()) as h:
        await send_all(h, run_ids, is_late=is_late)
        await h.advance(RETRIES_SECONDS)
        for run_id, before in zip(run_ids, told, strict=True):
            await check_blocked(h, run_id)
            assert await facts(h.run(run_id)) == before
        assert h.executed == []
        assert world.done == done
    async with stage.harness(Shop(world, ORIGINAL).registry()) as h:
        assert await results(h, run_ids) == [EXPECTED] * len(run_ids)
        assert list(await session_of(h).store.stats(FindOrphans(limit=10))) == []
    world.check_once()


async def history_of(stage: Stage, run_id: str) -> list[str]:
    async with stage.harness() as h:
        return await facts(h.run(run_id))


@pytest.mark.parametrize("change", ["rename a step", "insert a step", "remove a step", "swap two steps"])
async def test_a_bad_deploy_of_a_plain_function_executes_nothing_either(stage: Stage, change: str) -> None:
    world = World()
    run_ids = await live_runs(stage, world, "plain.v1", is_late=False)
    done = world.done.copy()
    async with stage.harness(Shop(world, EARLY[change]).registry()) as h:
        await send_all(h, run_ids, is_late=False)
        await h.advance(RETRIES_SECONDS)
        for run_id in run_ids:
            await check_blocked(h, run_id)
        assert world.done == done
    async with stage.harness(Shop(world, ORIGINAL).registry()) as h:
        assert await results(h, run_ids) == [["charge", 1, "reserve", "pack", 2, "ship"]] * len(run_ids)
    world.check_once()


@pytest.mark.parametrize("change", EARLY)
async def test_a_rolling_deploy_with_both_kinds_of_workers_succeeds_once_the_bad_ones_are_gone(
    stage: Stage, change: str
) -> None:
    world = World()
    run_ids = await live_runs(stage, world, is_late=False)
    old, new = Shop(world, ORIGINAL).registry(), Shop(world, EARLY[change]).registry()
    async with stage.harness(new) as bad, stage.harness(old) as good:
        await good.stop_worker()
        for run_id in run_ids:
            await bad.run(run_id).send("first", 1)
        await bad.settle()
        for run_id in run_ids:
            await check_blocked(bad, run_id)
        await good.start_worker()
        for _ in range(12):  # either worker may retry a blocked run, or continue one
            await bad.advance(20)
            await good.settle()
        for run_id in run_ids:
            await good.run(run_id).send("second", 2)
        await bad.advance(20)
        await bad.stop_worker()
        assert await results(good, run_ids) == [EXPECTED] * len(run_ids)
        assert set(bad.executed) <= {"label"}  # a step of the children, whose code is unchanged
    world.check_once()


@pytest.mark.parametrize("change", ["rename a step", "insert a step", "remove a step", "swap two steps"])
async def test_a_run_that_is_cancelled_during_a_bad_deploy_is_undone_by_the_code_that_wrote_its_history(
    stage: Stage, change: str
) -> None:
    world = World()
    run_ids = await live_runs(stage, world, is_late=True)
    async with stage.harness(Shop(world, EARLY[change]).registry()) as h:
        for run_id in run_ids:
            await h.run(run_id).cancel("no longer wanted")
        await h.advance(RETRIES_SECONDS)
        for run_id in run_ids:
            await check_blocked(h, run_id)
        assert h.executed == []
        assert not world.undone
    async with stage.harness(Shop(world, ORIGINAL).registry()) as h:
        await h.advance(RETRIES_SECONDS)
        for run_id in run_ids:
            with pytest.raises(RunCancelled):
                await cancelled(h.run(run_id))
    expected = {(run_id, name): 1 for run_id in run_ids for name in ("charge", "reserve", "pack")}
    assert world.undone == expected
    assert set(world.done.values()) == {1}


async def cancelled(run: RunHandle[Any]) -> Any:
    return await run.result()
