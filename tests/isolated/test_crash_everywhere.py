"""A process that dies at any call of its drivers changes nothing in the results: isolated runs end as on memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Break, Context, Continue, Holdfast, Retry, isolated, step_info
from holdfast.testing import Harness
from tests.isolated.faulty_namespace import When
from tests.isolated.vocabulary import explore
from tests.isolated.world import World
from tests.plugin.tiers import amount

PROGRAMS = amount(short=16, long=240, variable="HOLDFAST_VOCABULARY")
BATCHES = amount(short=4, long=16)
NAMES = ("good", "bad")


def application() -> Holdfast:  # noqa: C901 - branches and bodies are functions of their own
    """One of everything that an isolated run must have."""
    hf = Holdfast("memory://")

    @hf.workflow("child")
    async def child(ctx: Context, number: int) -> int:
        await ctx.sleep(3)
        return await ctx.step("double", lambda: number * 2)

    @hf.workflow("order")
    async def order(ctx: Context, name: str) -> Any:
        async def once(ctx: Context, state: int) -> Continue[int] | Break[int]:
            state += await ctx.step("fetch", lambda: 1)
            return Break(state) if state == 4 else Continue(state)

        def flaky() -> str:
            if step_info().attempt < 2:
                raise OSError("busy")
            return name

        async def answer(ctx: Context) -> Any:
            return await ctx.receive("answer")

        async def timeout(ctx: Context) -> None:
            await ctx.sleep(10)

        async def left(ctx: Context) -> str:
            return await ctx.step("left", lambda: "l")

        async def right(ctx: Context) -> str:
            return await ctx.step("right", lambda: "r")

        await ctx.step("reserve", lambda: name, undo=lambda value: None)
        found: list[Any] = [await ctx.loop("loop", once, 0, keep=2, every=2)]
        found.append(await ctx.step("flaky", flaky, retry=Retry(max_attempts=9, initial=1, jitter=0)))
        found.append(await ctx.join("both", {"left": left, "right": right}))
        found.append(list(await ctx.race("wait", {"answer": answer, "timeout": timeout})))
        found.append(await ctx.map(child, [(1,), (2,), (3,)], limit=2))
        ctx.send(ctx.run.id, "self", 5)
        found.append(await ctx.receive("self"))
        if name == "bad":
            raise ValueError("bad order")
        return found

    return hf


async def ends(world: World) -> dict[str, Any]:
    """Play two orders, one of which gets an answer. Return how they and their children ended.

    The ids of children contain the time, which a crash changes, so these count by their results.
    """
    for name in NAMES:
        world.start(name, "order", {"name": name})
    await world.mail("good", isolated.message("1", "answer", 1, at=world.now))
    await world.play()
    found: dict[str, Any] = {
        name: (end.state, end.result, None if end.error is None else end.error.message)
        for name, end in world.ends.items()
        if name in NAMES
    }
    children = [(end.state, end.result) for run_id, end in world.ends.items() if run_id not in NAMES]
    return found | {"children": sorted(children)}


async def in_memory() -> dict[str, Any]:
    """Return how the same orders end on the memory store."""
    async with Harness(application()) as h:
        found = {}
        for name in NAMES:
            run = await h.start("order", {"name": name}, id=name)
            if name == "good":
                await run.send("answer", 1)
            while not (await run.info()).state.is_end:
                await h.settle()
                await h.skip()
            info = await run.info()
            result = await run.result() if info.error is None else None
            found[name] = (info.state, result, None if info.error is None else info.error.message)
        return found


async def test_isolated_runs_end_as_on_the_memory_store() -> None:
    found = await ends(World(application()))
    expected = await in_memory()
    assert {name: found[name] for name in expected} == expected


@pytest.mark.both_tiers
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_that_dies_at_any_call_changes_nothing(when: When, part: int) -> None:
    undisturbed = World(application())
    expected = await ends(undisturbed)
    calls = len(undisturbed.counter.names)
    step = 4 * amount(short=10, long=1)
    for number in range(1 + part, calls + 1, step):
        world = World(application(), crashes={number: when})
        assert await ends(world) == expected, f"the process died {when} call {number} of {calls}"
        # Results of two threads may share a batch, so the last call of one play may not exist in another.
        assert world.died == int(number <= len(world.counter.names))


async def test_a_process_that_dies_changes_nothing_in_files(tmp_path: Path) -> None:
    expected = await ends(World(application()))
    files: list[isolated.SqliteNamespace] = []

    def make(run_id: str) -> isolated.SqliteNamespace:
        files.append(isolated.SqliteNamespace(tmp_path / f"{run_id}.db"))
        return files[-1]

    crashes: dict[int, When] = {20: "after", 45: "before", 70: "after", 100: "before"}
    world = World(application(), make=make, crashes=crashes)
    assert await ends(world) == expected
    assert world.died == 4
    for file in files:
        file.close()


@pytest.mark.both_tiers
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_random_programs_end_as_the_interpreter_predicts(batch: int) -> None:
    for seed in range(batch, PROGRAMS, BATCHES):
        await explore(seed)


async def test_a_body_that_kills_its_process_uses_up_its_attempts() -> None:
    hf, namespace, executed = Holdfast("memory://"), isolated.DictionaryNamespace(), 0

    @hf.workflow("deadly")
    async def deadly(ctx: Context) -> None:
        def body() -> None:
            nonlocal executed
            executed += 1
            world.counter.crashes[len(world.counter.names) + 1] = "before"

        await ctx.step("boom", body, retry=Retry(max_attempts=2))

    world = World(hf, make=lambda _: namespace)
    world.start("run", "deadly", {})
    await world.settle()
    error = world.ends["run"].error
    assert error is not None
    assert (world.died, executed, error.type) == (2, 2, "StepFailed")
    assert "no attempt is left" in error.message
