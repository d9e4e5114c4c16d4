"""New code under live runs: `removed` declares an operation that the code no longer has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Break, Context, Continue, InvalidRequest, WaitTimeout
from holdfast.core.model import EntryKind
from tests.scenario.deploy import Code, blocked, deployed, old, one, recorded, shop
from tests.stage import Stage, facts


@pytest.mark.every_store
async def test_a_removed_step_is_skipped(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.removed("charge", "step")
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, old)
    assert await deployed(stage, after, run_id) == ("new", [])


async def test_a_run_that_never_had_the_removed_step_records_that_and_replays(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        await ctx.removed("charge", "step")
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, after)
    async with stage.harness(shop(after)) as h:
        assert await facts(h.run(run_id)) == ["charge removed done", "pack step done"]
    assert await deployed(stage, after, run_id) == ("new", [])


async def test_code_that_has_the_operation_again_diverges_for_a_run_that_passed_without_it(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.removed("charge", "step")
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, after)
    async with stage.harness(shop(old)) as h:
        info = await blocked(h, run_id)
        assert "at 'charge' the history has a removed, but the code now asks for a step" in str(info.error)


async def test_an_operation_of_another_kind_is_a_divergence(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.removed("charge", "child")
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "?"

    run_id = await recorded(stage, old)
    async with stage.harness(shop(after)) as h:
        info = await blocked(h, run_id)
        assert "at 'charge' the history has a step, not the child that was removed" in str(info.error)


async def test_among_operations_of_one_name_the_one_in_its_place_is_removed(stage: Stage) -> None:
    async def before(ctx: Context) -> Any:
        found = [await ctx.step("roll", lambda number: number, number) for number in range(3)]
        await ctx.receive("go")
        return found

    async def after(ctx: Context) -> Any:
        first = await ctx.step("roll", one)
        ctx.removed("roll", "step")
        last = await ctx.step("roll", one)
        await ctx.receive("go")
        return [first, last]

    run_id = await recorded(stage, before)
    assert await deployed(stage, after, run_id) == ([0, 2], [])


async def times_out(ctx: Context) -> None:
    with pytest.raises(WaitTimeout):
        await ctx.receive("never", timeout=5)


@pytest.mark.parametrize(
    ("operation", "name", "kind"),
    [
        (lambda ctx: ctx.sleep(10), "sleep", "sleep"),
        (lambda _: asyncio.sleep(10), "~timer", "timer"),
        (lambda ctx: ctx.receive("first"), "receive:first", "message"),
        (lambda ctx: ctx.wait_event("news/today"), "event:news%2Ftoday", "event"),
        (lambda ctx: ctx.send("nobody", "hello"), "send:hello", "send"),
        (lambda ctx: ctx.emit("news"), "emit:news", "emit"),
        (lambda ctx: ctx.start("other.v1"), "other.v1", "child"),
        (lambda ctx: ctx.version("way", 2), "version:way", "version"),
        (times_out, "receive:never", "message"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_every_kind_of_operation_can_be_removed_by_its_name_in_the_history(
    stage: Stage, operation: Code, name: str, kind: str
) -> None:
    async def before(ctx: Context) -> str:
        await operation(ctx)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "old"

    async def after(ctx: Context) -> str:
        ctx.removed(name, kind)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    async with stage.harness(shop(before)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        await run.send("first")
        await h.emit("news/today")
        await h.advance(20)
        assert {f"{name} {EntryKind('timer' if kind == 'sleep' else kind)}", "pack step"} <= {
            fact.rpartition(" ")[0] for fact in await facts(run)
        }
    assert await deployed(stage, after, run.id) == ("new", [])


async def test_a_child_that_was_removed_continues_by_itself(stage: Stage) -> None:
    async def before(ctx: Context) -> Any:
        child = await ctx.start("other.v1")
        await ctx.receive("go")
        return await child

    async def after(ctx: Context) -> str:
        ctx.removed("other.v1", "child")
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, before)
    assert await deployed(stage, after, run_id) == ("new", [])
    async with stage.harness(shop(after)) as h:
        (child,) = [info async for info in h.list(parent_id=run_id)]
        await h.run(child.id).send("end")
        assert await h.run(child.id).result() == "other"


async def test_the_time_after_a_removed_sleep_is_unchanged(stage: Stage) -> None:
    async def before(ctx: Context) -> str:
        await ctx.sleep(3600)
        await ctx.receive("go", timeout=60)
        return "old"

    async def after(ctx: Context) -> str:
        ctx.removed("sleep", "timer")
        await ctx.receive("go", timeout=60)
        return "new"

    async with stage.harness(shop(before)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        await h.advance(3600)
    assert await deployed(stage, after, run.id) == ("new", [])


async def test_an_event_that_a_removed_wait_received_is_not_delivered_again(stage: Stage) -> None:
    async def before(ctx: Context) -> Any:
        await ctx.wait_event("news")
        await ctx.receive("go")
        return await ctx.wait_event("news")

    async def after(ctx: Context) -> Any:
        ctx.removed("event:news", "event")
        await ctx.receive("go")
        return await ctx.wait_event("news", timeout=5)

    async with stage.harness(shop(before)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        await h.emit("news", 1)
        await h.settle()
    async with stage.harness(shop(after)) as h:
        await h.run(run.id).send("go")
        await h.settle()
        await h.emit("news", 2)
        assert await h.run(run.id).result() == 2


@pytest.mark.parametrize(
    ("name", "kind"), [("a", "steps"), ("a", None), ("a", "undo"), ("a/b", "step"), ("~a", "step")]
)
async def test_an_unknown_kind_or_name_is_refused(stage: Stage, name: str, kind: Any) -> None:
    async def code(ctx: Context) -> str:
        with pytest.raises(InvalidRequest) as refusal:
            ctx.removed(name, kind)
        return str(refusal.value)

    async with stage.harness(shop(code)) as h:
        text = await h.execute("shop.v1")
        assert "step, tx, timer, message" in text if name == "a" else "or begin with" in text


async def branches(ctx: Context, kind: str) -> Any:
    """An operation that contains others."""
    match kind:
        case "join":
            return await ctx.join("checks", {"a": one_step, "b": one_step})
        case "race":
            return await ctx.race("checks", {"a": one_step, "b": one_step})
        case "map":
            return await ctx.map("quick.v1", [{"number": 0}, {"number": 0}], name="checks")
        case _:
            return await ctx.loop("checks", three_times, 0, keep=1, every=1)


async def one_step(ctx: Context) -> int:
    return await ctx.step("look", one)


async def three_times(ctx: Context, count: int) -> Continue[int] | Break[int]:
    await ctx.step("look", one)
    return Break(count) if count == 2 else Continue(count + 1)


@pytest.mark.parametrize("kind", ["join", "race", "map", "loop"])
async def test_an_operation_that_contains_others_is_removed_with_them(stage: Stage, kind: str) -> None:
    async def before(ctx: Context) -> Any:
        await branches(ctx, kind)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "old"

    async def after(ctx: Context) -> str:
        ctx.removed("checks", kind)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, before)
    assert await deployed(stage, after, run_id) == ("new", [])


async def test_a_loop_that_was_removed_in_the_middle_is_skipped(stage: Stage) -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        await ctx.step("look", one)
        if count == 2:
            await ctx.receive("go")
        return Continue(count + 1)

    async def before(ctx: Context) -> Any:
        return await ctx.loop("checks", body, 0, keep=1, every=1)

    async def after(ctx: Context) -> str:
        ctx.removed("checks", "loop")
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, before)
    assert await deployed(stage, after, run_id) == ("new", [])
