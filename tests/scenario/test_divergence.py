"""Divergence: code that no longer fits a run's history blocks the run, says why, and fitting code heals it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Registry, RunState
from holdfast.testing.harness import Harness
from tests.stage import Stage, facts

Code = Callable[[Context], Awaitable[Any]]


def one() -> int:
    return 1


def shop(code: Code, *, strict: bool = True) -> Registry:
    """An application with one workflow, which has this code."""
    app = Registry()

    @app.workflow("shop.v1", strict=strict)
    async def workflow(ctx: Context) -> Any:
        return await code(ctx)

    return app


async def recorded(stage: Stage, code: Code) -> str:
    """Start a run with this code, let it go as far as it can, and return its id."""
    async with stage.harness(shop(code)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
    return run.id


async def woken(h: Harness, run_id: str) -> Any:
    await h.run(run_id).send("go")
    await h.settle()
    return await h.run(run_id).info()


async def original(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.step("pack", one)
    await ctx.receive("go")
    return "done"


async def another_kind(ctx: Context) -> str:
    await ctx.call("other.v1", name="charge")
    return "?"


async def finishes_early(ctx: Context) -> str:
    await ctx.step("charge", one)
    return "early"


async def raises_early(ctx: Context) -> str:
    await ctx.step("charge", one)
    raise ValueError("new idea")


async def only_waits(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.receive("other")
    return "?"


async def renamed(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.step("wrap", one)
    await ctx.receive("go")
    return "?"


async def forgets_to_send(ctx: Context) -> str:
    return "quiet"


async def inserts(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.step("check", one)
    await ctx.step("pack", one)
    await ctx.receive("go")
    return "?"


async def swaps(ctx: Context) -> str:
    await ctx.step("pack", one)
    await ctx.step("charge", one)
    await ctx.receive("go")
    return "?"


KIND = "at 'charge' the history has a step, but the code now asks for a child"
NEXT = "the next recorded result is that of 'pack' (a step, position 2), and the code does not ask for it"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (another_kind, [KIND]),
        (finishes_early, ["the code finished, but the history continues", "never reached: pack"]),
        (raises_early, ["the code raised, but the history continues", "never reached: pack"]),
        (only_waits, [NEXT, "Asked for: receive:other"]),
        (renamed, [NEXT, "Asked for: wrap"]),
        (inserts, [NEXT, "Asked for: check"]),
        (swaps, ["the next recorded result is that of 'charge' (a step, position 1)", "Asked for: pack"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_each_kind_of_divergence_blocks_the_run_before_anything_is_executed_and_names_both_sides(
    stage: Stage, code: Code, words: list[str]
) -> None:
    run_id = await recorded(stage, original)
    async with stage.harness(shop(code)) as h:
        info = await woken(h, run_id)
        assert info.state is RunState.BLOCKED
        assert info.error.type == "HistoryDiverged"
        for word in [*words, "Deploy code that fits"]:
            assert word in info.error.message
        await h.advance(3600)
        assert h.executed == []
        assert await facts(h.run(run_id)) == ["charge step done", "pack step done"]
    async with stage.harness(shop(original)) as h:
        assert await h.run(run_id).result() == "done"
        assert h.executed == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (another_kind, [KIND]),
        (finishes_early, ["the code finished, but the history continues", "never reached: pack"]),
        (raises_early, ["the code raised, but the history continues", "never reached: pack"]),
        (only_waits, ["the code can only wait now, but the history continues", "pack", "Asked for: receive:other"]),
        (renamed, ["the code finished, but the history continues", "never reached: pack"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_code_that_is_not_strict_diverges_if_it_cannot_reach_a_recorded_operation(
    stage: Stage, code: Code, words: list[str]
) -> None:
    run_id = await recorded(stage, original)
    async with stage.harness(shop(code, strict=False)) as h:
        info = await woken(h, run_id)
        assert info.state is RunState.BLOCKED
        for word in words:
            assert word in info.error.message


@pytest.mark.every_store
async def test_a_diverged_run_is_healed_by_code_that_fits(stage: Stage) -> None:
    run_id = await recorded(stage, original)
    async with stage.harness(shop(finishes_early)) as h:
        assert (await woken(h, run_id)).state is RunState.BLOCKED
    async with stage.harness(shop(original)) as h:
        run = h.run(run_id)
        assert await run.result() == "done"
        info = await run.info()
        assert (info.error, info.attempt) == (None, 2)
        assert h.executed == []
        assert "blocked" in [fact.event for fact in await run.audit()]


async def test_a_blocked_run_is_retried_after_five_seconds_then_at_growing_intervals_up_to_ten_minutes(
    stage: Stage,
) -> None:
    run_id = await recorded(stage, original)
    pauses = []
    async with stage.harness(shop(finishes_early)) as h:
        info = await woken(h, run_id)
        for _ in range(9):
            assert info.state is RunState.BLOCKED
            pauses.append((info.ready_at - h.now).total_seconds())
            await h.advance(info.ready_at - h.now - timedelta(microseconds=1))
            before = await h.run(run_id).info()
            assert before.attempt == info.attempt
            await h.advance(timedelta(microseconds=1))
            info = await h.run(run_id).info()
            assert info.attempt == before.attempt + 1
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 600, 600]


async def test_a_run_that_continued_after_a_block_starts_again_with_a_short_retry_interval(stage: Stage) -> None:
    run_id = await recorded(stage, original)

    async def goes_on(ctx: Context) -> str:
        await ctx.step("charge", one)
        await ctx.step("pack", one)
        await ctx.receive("go")
        await ctx.receive("more")
        return "done"

    async with stage.harness(shop(finishes_early)) as h:
        await woken(h, run_id)
        await h.advance(300)
    async with stage.harness(shop(goes_on)) as h:
        await h.advance(600)
        assert (await h.run(run_id).info()).state is RunState.SUSPENDED
    async with stage.harness(shop(finishes_early)) as h:
        await h.run(run_id).send("more")
        await h.settle()
        info = await h.run(run_id).info()
        assert info.state is RunState.BLOCKED
        assert info.ready_at is not None
        assert (info.ready_at - h.now).total_seconds() == 5


async def test_steps_inserted_by_code_that_is_not_strict_are_executed_in_place(stage: Stage) -> None:
    order: list[str] = []

    async def more(ctx: Context) -> list[int]:
        found = [await ctx.step("check", one), await ctx.step("charge", one)]
        found.append(await ctx.step("log", lambda: 7))
        await ctx.step("pack", one)
        order.append("packed")
        await ctx.receive("go")
        await ctx.sleep(3600)
        return found

    run_id = await recorded(stage, original)
    async with stage.harness(shop(more, strict=False)) as h:
        run = h.run(run_id)
        await run.send("go")
        assert await run.result() == [1, 1, 7]
        assert h.executed == ["check", "log"]
        assert await facts(run) == [
            "charge step done",
            "pack step done",
            "check step done",
            "log step done",
            "receive:go message done",
            "sleep timer done",
        ]


async def test_an_inserted_step_that_is_retried_later_does_not_diverge(stage: Stage) -> None:
    tries: list[int] = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("busy")
        return len(tries)

    async def more(ctx: Context) -> int:
        found = await ctx.step("check", flaky)
        await ctx.step("charge", one)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return found

    run_id = await recorded(stage, original)
    async with stage.harness(shop(more, strict=False)) as h:
        await h.run(run_id).send("go")
        assert await h.run(run_id).result() == 2


async def test_steps_that_changed_their_order_take_their_own_results_where_code_is_not_strict(stage: Stage) -> None:
    async def before(ctx: Context) -> Any:
        first = await ctx.step("a", lambda: "A")
        second = await ctx.step("b", lambda: "B")
        await ctx.receive("go")
        return [first, second]

    async def after(ctx: Context) -> Any:
        second = await ctx.step("b", lambda: "new b")
        first = await ctx.step("a", lambda: "new a")
        await ctx.receive("go")
        return [first, second]

    run_id = await recorded(stage, before)
    async with stage.harness(shop(after, strict=False)) as h:
        await h.run(run_id).send("go")
        assert await h.run(run_id).result() == ["A", "B"]
        assert h.executed == []


async def test_a_change_in_one_branch_does_not_renumber_another(stage: Stage) -> None:
    async def branch(ctx: Context, names: str) -> str:
        return "".join([await ctx.step("s", lambda given: given, name) for name in names])

    async def before(ctx: Context) -> Any:
        found = await asyncio.gather(branch(ctx, "ab"), branch(ctx, "xy"))
        await ctx.receive("go")
        return list(found)

    async def after(ctx: Context) -> Any:
        found = await asyncio.gather(branch(ctx, "abc"), branch(ctx, "xy"))
        await ctx.receive("go")
        return list(found)

    run_id = await recorded(stage, before)
    async with stage.harness(shop(after)) as h:
        await h.run(run_id).send("go")
        assert await h.run(run_id).result() == ["abc", "xy"]
        assert h.executed == ["+1/s#3"]


@pytest.mark.parametrize("what", ["send", "emit", "start", "cancel"])
async def test_an_effect_that_new_code_no_longer_has_is_a_divergence(stage: Stage, what: str) -> None:
    async def before(ctx: Context) -> str:
        match what:
            case "send":
                ctx.send("nobody", "hello")
            case "emit":
                ctx.emit("news")
            case "start":
                ctx.start("other.v1")
            case _:
                (await ctx.start("other.v1")).cancel()
        await ctx.receive("go")
        return "done"

    async def after(ctx: Context) -> str:
        await ctx.receive("go")
        return "done"

    run_id = await recorded(stage, before)
    async with stage.harness(shop(after)) as h:
        info = await woken(h, run_id)
        assert info.state is RunState.BLOCKED
        assert "never reached" in str(info.error)


async def test_messages_and_events_for_a_blocked_run_are_kept(stage: Stage) -> None:
    async def before(ctx: Context) -> Any:
        await ctx.step("charge", one)
        await ctx.receive("go")
        return [await ctx.receive("later"), await ctx.wait_event("news")]

    async def broken(ctx: Context) -> str:
        return "?"

    run_id = await recorded(stage, before)
    async with stage.harness(shop(broken)) as h:
        assert (await woken(h, run_id)).state is RunState.BLOCKED
        await h.run(run_id).send("later", 1)
        await h.emit("news", 2)
        assert (await h.run(run_id).info()).state is RunState.BLOCKED
    async with stage.harness(shop(before)) as h:
        assert await h.run(run_id).result() == [1, 2]
