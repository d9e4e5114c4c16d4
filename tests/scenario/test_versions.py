"""New code under live runs: `version` keeps old runs on the old way, `removed` lets go of what is no longer there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, InvalidRequest, Registry, Retry, RunInfo, RunState, WaitTimeout
from holdfast.core.model import EntryKind
from holdfast.testing.harness import Harness
from tests.stage import Stage, facts

Code = Callable[[Context], Awaitable[Any]]


def one() -> int:
    return 1


def shop(code: Code, *, strict: bool = False) -> Registry:
    """An application whose one workflow has this code today."""
    app = Registry()

    @app.workflow("shop.v1", strict=strict)
    async def workflow(ctx: Context) -> Any:
        return await code(ctx)

    @app.workflow("other.v1")
    async def other(ctx: Context) -> str:
        await ctx.receive("end")
        return "other"

    return app


async def recorded(stage: Stage, code: Code) -> str:
    """The id of a run that has come as far as it can with this code."""
    async with stage.harness(shop(code)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        info = await run.info()
        assert info.state is RunState.SUSPENDED, info.error
    return run.id


async def deployed(stage: Stage, code: Code, run_id: str, *, strict: bool = False) -> tuple[Any, list[str]]:
    """What a run comes to under new code when it gets its message, and the steps that were executed for it."""
    async with stage.harness(shop(code, strict=strict)) as h:
        await h.run(run_id).send("go")
        return await h.run(run_id).result(), h.executed


async def blocked(h: Harness, run_id: str) -> RunInfo:
    await h.run(run_id).send("go")
    await h.settle()
    info = await h.run(run_id).info()
    assert info.state is RunState.BLOCKED, info
    return info


async def old(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.step("pack", one)
    await ctx.receive("go")
    return "old"


async def new(ctx: Context) -> str:
    await ctx.step("charge", one)
    if ctx.version("packing", 2) == 1:
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "old"
    await ctx.step("wrap", one)
    await ctx.receive("go")
    return "new"


# Versions


async def test_a_run_that_was_there_before_the_change_keeps_to_the_old_way(stage: Stage) -> None:
    run_id = await recorded(stage, old)
    assert await deployed(stage, new, run_id) == ("old", [])


async def test_a_run_that_comes_later_takes_the_new_way(stage: Stage) -> None:
    run_id = await recorded(stage, new)
    assert await deployed(stage, new, run_id) == ("new", [])


async def test_a_run_that_had_not_come_to_the_change_takes_the_new_way(stage: Stage) -> None:
    async def early(ctx: Context) -> str:
        await ctx.receive("start")
        return await old(ctx)

    async def later(ctx: Context) -> str:
        await ctx.receive("start")
        return await new(ctx)

    run_id = await recorded(stage, early)
    async with stage.harness(shop(later)) as h:
        await h.run(run_id).send("start")
        await h.run(run_id).send("go")
        assert await h.run(run_id).result() == "new"
        assert await facts(h.run(run_id)) == [
            "receive:start message done",
            "charge step done",
            "version:packing version done",
            "wrap step done",
            "receive:go message done",
        ]


async def test_a_step_that_was_only_tried_shows_that_the_run_was_there(stage: Stage) -> None:
    def broken() -> None:
        raise OSError("busy")

    async def trying(ctx: Context) -> None:
        await ctx.step("charge", one)
        await ctx.step("pack", broken, retry=Retry(max_attempts=9, initial=3600, jitter=0))

    run_id = await recorded(stage, trying)
    async with stage.harness(shop(new)) as h:
        await h.run(run_id).send("go")
        assert await h.run(run_id).result() == "old"


async def test_the_answer_stays_whatever_code_comes_next(stage: Stage) -> None:
    async def asking(latest: int) -> Any:
        async def code(ctx: Context) -> int:
            found = ctx.version("way", latest)
            await ctx.receive("go")
            return found

        return code

    run_id = await recorded(stage, await asking(2))
    assert await deployed(stage, await asking(3), run_id) == (2, [])


async def test_code_that_does_not_know_the_recorded_version_is_a_divergence(stage: Stage) -> None:
    async def third(ctx: Context) -> int:
        found = ctx.version("way", 3)
        await ctx.receive("go")
        return found

    async def second(ctx: Context) -> int:
        found = ctx.version("way", 2)
        await ctx.receive("go")
        return found

    run_id = await recorded(stage, third)
    async with stage.harness(shop(second)) as h:
        info = await blocked(h, run_id)
        assert "the history has version 3, the code knows those from 1 to 2" in str(info.error)


async def test_a_version_may_be_awaited(stage: Stage) -> None:
    async def code(ctx: Context) -> Any:
        awaited, plain = await ctx.version("a", 2), ctx.version("b", 3)
        await ctx.receive("go")
        return [awaited, plain, type(awaited).__name__, plain >= 3]

    run_id = await recorded(stage, code)
    assert await deployed(stage, code, run_id) == ([2, 3, "int", True], [])


async def test_each_branch_has_versions_of_its_own(stage: Stage) -> None:
    async def before(ctx: Context, name: str) -> str:
        await ctx.step("look", one)
        await ctx.receive(name)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "old"

    async def after(ctx: Context, name: str) -> str:
        await ctx.step("look", one)
        await ctx.receive(name)
        way = ctx.version("packing", 2)
        if way == 1:
            await ctx.step("pack", one)
        await ctx.receive("go")
        return f"{name} {way}"

    async def both_before(ctx: Context) -> Any:
        return list(await asyncio.gather(before(ctx, "a"), before(ctx, "b")))

    async def both_after(ctx: Context) -> Any:
        return list(await asyncio.gather(after(ctx, "a"), after(ctx, "b")))

    async with stage.harness(shop(both_before)) as h:
        run = await h.start("shop.v1")
        await run.send("a")
        await h.settle()
        assert "+1/pack step done" in await facts(run)
    async with stage.harness(shop(both_after)) as h:
        await h.run(run.id).send("b")
        await h.run(run.id).send("go")
        await h.run(run.id).send("go")
        assert await h.run(run.id).result() == ["a 1", "b 2"]


async def test_a_version_that_is_asked_for_again_in_a_scope_is_another(stage: Stage) -> None:
    async def code(ctx: Context) -> Any:
        found = [ctx.version("way", 2) for _ in range(2)]
        await ctx.receive("go")
        return found

    run_id = await recorded(stage, code)
    async with stage.harness(shop(code)) as h:
        assert await facts(h.run(run_id)) == ["version:way version done", "version:way#2 version done"]


async def test_asking_for_a_version_does_not_renumber_a_step_of_its_name(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.version("charge", 2)
        return await old(ctx)

    run_id = await recorded(stage, old)
    assert await deployed(stage, after, run_id) == ("old", [])


async def test_a_value_set_after_a_version_is_not_published_again_on_replay(stage: Stage) -> None:
    async def before(ctx: Context) -> str:
        ctx.set_value("progress", "begun")
        await ctx.step("charge", one)
        ctx.set_value("progress", "charged")
        await ctx.receive("go")
        return "done"

    async def after(ctx: Context) -> str:
        ctx.version("way", 2)
        ctx.set_value("progress", "begun")
        await ctx.step("charge", one)
        ctx.set_value("progress", "charged")
        await ctx.receive("go")
        await ctx.receive("more")
        ctx.set_value("progress", "more")
        await ctx.receive("end")
        return "done"

    run_id = await recorded(stage, before)
    async with stage.harness(shop(after)) as h:
        run = h.run(run_id)
        await run.send("go")
        await h.settle()
        assert await run.value("progress") == "charged"
        await run.send("more")
        await h.settle()
        assert await run.value("progress") == "more"


@pytest.mark.parametrize("latest", [0, -1, True, 1.5, "2", None])
async def test_a_latest_version_that_is_no_whole_number_from_one_on_is_refused(stage: Stage, latest: Any) -> None:
    async def code(ctx: Context) -> str:
        with pytest.raises(InvalidRequest, match="latest is a whole number from 1 on"):
            ctx.version("way", latest)
        return "refused"

    async with stage.harness(shop(code)) as h:
        assert await h.execute("shop.v1") == "refused"


# Removed operations


async def test_a_step_that_was_removed_is_let_go(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.removed("charge", "step")
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, old)
    assert await deployed(stage, after, run_id) == ("new", [])


async def test_a_run_that_never_had_it_notes_so_and_replays(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        await ctx.removed("charge", "step")
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, after)
    async with stage.harness(shop(after)) as h:
        assert await facts(h.run(run_id)) == ["charge removed done", "pack step done"]
    assert await deployed(stage, after, run_id) == ("new", [])


async def test_code_that_has_the_operation_again_diverges_for_a_run_that_passed_without(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.removed("charge", "step")
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, after)
    async with stage.harness(shop(old)) as h:
        info = await blocked(h, run_id)
        assert "at 'charge' the history has a removed, the code now asks for a step" in str(info.error)


async def test_an_operation_of_another_kind_is_a_divergence(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.removed("charge", "child")
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "?"

    run_id = await recorded(stage, old)
    async with stage.harness(shop(after)) as h:
        info = await blocked(h, run_id)
        assert "at 'charge' the history has a step, the code now asks for a child" in str(info.error)


async def test_of_several_of_one_name_the_one_in_its_place_is_removed(stage: Stage) -> None:
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


async def test_a_child_that_was_removed_goes_on_by_itself(stage: Stage) -> None:
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


async def test_the_time_after_a_sleep_that_was_removed_is_as_it_was(stage: Stage) -> None:
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


async def test_an_event_that_a_removed_wait_has_had_is_not_given_again(stage: Stage) -> None:
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
async def test_a_kind_or_name_that_no_operation_has_is_refused(stage: Stage, name: str, kind: Any) -> None:
    async def code(ctx: Context) -> str:
        with pytest.raises(InvalidRequest) as refusal:
            ctx.removed(name, kind)
        return str(refusal.value)

    async with stage.harness(shop(code)) as h:
        text = await h.execute("shop.v1")
        assert "step, timer, message" in text if name == "a" else "does not begin with" in text


# Strict


async def test_strict_code_may_not_insert_a_step_before_the_end_of_a_history(stage: Stage) -> None:
    async def more(ctx: Context) -> str:
        await ctx.step("charge", one)
        await ctx.step("check", one)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "more"

    run_id = await recorded(stage, old)
    async with stage.harness(shop(more, strict=True)) as h:
        info = await blocked(h, run_id)
        assert "does not ask for what comes next: 'pack'" in str(info.error)
        assert h.executed == []


async def test_strict_code_may_not_change_the_order_of_steps(stage: Stage) -> None:
    async def swapped(ctx: Context) -> str:
        await ctx.step("pack", one)
        await ctx.step("charge", one)
        await ctx.receive("go")
        return "swapped"

    run_id = await recorded(stage, old)
    async with stage.harness(shop(swapped, strict=True)) as h:
        info = await blocked(h, run_id)
        assert "does not ask for what comes next: 'charge'" in str(info.error)
    assert await deployed(stage, swapped, run_id) == ("swapped", [])


async def test_strict_code_may_not_forget_what_it_only_began(stage: Stage) -> None:
    async def before(ctx: Context) -> str:
        ctx.start("other.v1")
        await ctx.receive("go")
        return "old"

    async def after(ctx: Context) -> int:
        return await ctx.step("charge", one)

    run_id = await recorded(stage, before)
    async with stage.harness(shop(after, strict=True)) as h:
        info = await blocked(h, run_id)
        assert "goes on without what the history has begun" in str(info.error)
        assert h.executed == []


async def test_strict_code_may_use_versions_and_removed_operations(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.removed("charge", "step")
        if ctx.version("packing", 2) == 1:
            await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, old)
    assert await deployed(stage, after, run_id, strict=True) == ("new", [])


async def test_strict_code_that_fits_goes_on(stage: Stage) -> None:
    run_id = await recorded(stage, old)
    assert await deployed(stage, old, run_id, strict=True) == ("old", [])
