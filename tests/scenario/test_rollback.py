"""Rollback: the steps of a run are undone in reverse order, however the run ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import (
    Break,
    Context,
    Continue,
    Fatal,
    InvalidRequest,
    JoinFailed,
    Registry,
    Retry,
    Rollback,
    RunCancelled,
    RunFailed,
    RunState,
    StepFailed,
    step_info,
)
from tests.stage import Stage, facts

once = Retry(max_attempts=1)


class World:
    """A log of executed steps and undo functions, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def do(self, name: str) -> str:
        self.log.append(f"+{name}")
        return name

    def undo(self, name: str) -> None:
        self.log.append(f"-{name}")

    def step(self, ctx: Context, name: str, **options: Any) -> Any:
        return ctx.step(name, self.do, name, undo=self.undo, **options)

    @property
    def undone(self) -> list[str]:
        return [entry[1:] for entry in self.log if entry.startswith("-")]


@pytest.fixture
def world() -> World:
    return World()


def fails() -> None:
    raise Fatal("no")


@pytest.mark.every_store
async def test_an_uncaught_error_undoes_the_steps_in_reverse_order(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "flight")
        await ctx.sleep(60)
        await world.step(ctx, "hotel")
        await ctx.step("plain", lambda: 1)
        await ctx.step("car", fails)

    async with stage.harness(app) as h:
        run = await h.start(saga)
        with pytest.raises(RunFailed, match="step 'car' failed"):
            await run.result()
        assert world.undone == ["hotel", "flight"]
        assert await facts(run) == [
            "flight step done",
            "sleep timer done",
            "hotel step done",
            "plain step done",
            "car step failed",
            "~rollback rollback done",
            "~undo/hotel undo done",
            "~undo/flight undo done",
        ]


async def test_a_run_without_undo_fails_at_once(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def plain(ctx: Context) -> None:
        await ctx.step("a", lambda: 1)
        raise Rollback("nothing to do")

    async with stage.harness(app) as h:
        run = await h.start(plain)
        with pytest.raises(RunFailed, match="Rollback: nothing to do"):
            await run.result()
        assert await facts(run) == ["a step done"]
        assert "rolling_back" not in [fact.event for fact in await run.audit()]


async def test_rollback_can_be_requested_with_a_reason(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        raise Rollback("the customer changed his mind")

    async with stage.harness(app) as h:
        run = await h.start(saga)
        with pytest.raises(RunFailed, match="the customer changed his mind"):
            await run.result()
        assert world.undone == ["a"]
        assert (await run.info()).state is RunState.FAILED


def gives_up() -> None:
    raise Rollback("sold out")


async def test_a_step_that_raises_rollback_is_not_retried_and_ends_the_run(stage: Stage, world: World) -> None:
    app = Registry()

    async def ordering(ctx: Context) -> None:
        try:
            await ctx.step("order", gives_up)
        except StepFailed:
            world.log.append("went on")

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.join("both", {"order": ordering, "other": lambda inner: inner.sleep(60)})

    async with stage.harness(app) as h:
        run = await h.start(saga)
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert failed.value.matches(Rollback)
        assert failed.value.error.message == "sold out"
        assert failed.value.error.locations == ("both/order/order",)
        assert world.log == ["+a", "-a"]
        (order,) = [entry for entry in await run.history() if entry.location == "both/order/order"]
        assert order.attempts == 1


async def test_a_task_that_raises_rollback_fails_at_once(stage: Stage) -> None:
    app = Registry()
    task = app.task("order")(gives_up)

    async with stage.harness(app) as h:
        run = await h.start(task)
        with pytest.raises(RunFailed, match="Rollback: sold out") as failed:
            await run.result()
        assert failed.value.error.attempts == 1


async def test_an_undo_that_raises_rollback_blocks_the_run(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        await ctx.step("a", world.do, "a", undo=lambda _: gives_up())
        raise Rollback("no more")

    async with stage.harness(app) as h:
        run = await h.start(saga)
        await h.settle()
        info = await run.info()
        assert info.state is RunState.BLOCKED
        assert info.error is not None
        assert info.error.type == "UndoFailed"


async def test_an_error_that_is_caught_undoes_nothing(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> str:
        await world.step(ctx, "a")
        try:
            await ctx.step("b", fails)
        except Exception:  # noqa: BLE001 - as users do
            return "went on"
        return "?"

    async with stage.harness(app) as h:
        assert await h.execute(saga) == "went on"
        assert world.undone == []


async def test_a_decorated_step_brings_its_undo(stage: Stage, world: World) -> None:
    app = Registry()

    @app.step
    async def refund(receipt: str) -> None:
        world.undo(receipt)
        assert step_info().location == "~undo/charge"
        assert step_info().idempotency_key.endswith(":1:~undo/charge")

    @app.step(undo=refund)
    async def charge(cents: int) -> str:
        return world.do(f"charged {cents}")

    @app.workflow
    async def saga(ctx: Context) -> None:
        await charge(5)
        raise ValueError("oh")

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="oh"):
            await h.execute(saga)
        assert world.log == ["+charged 5", "-charged 5"]


async def test_a_cancelled_run_rolls_back_first_and_ends_cancelled(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await world.step(ctx, "b")
        await ctx.receive("never")

    async with stage.harness(app) as h:
        run = await h.start(saga)
        await h.settle()
        assert await run.cancel("enough") is True
        with pytest.raises(RunCancelled, match="enough"):
            await run.result()
        assert world.undone == ["b", "a"]
        events = [fact.event for fact in await run.audit()]
        assert events[-3:] == ["rolling_back", "claimed", "cancelled"]


async def test_cancelling_a_run_that_rolls_back_changes_nothing_and_force_ends_it(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a", retry=Retry(initial=600, jitter=0))
        await ctx.receive("never")

    def broken(name: str) -> None:
        raise OSError("busy")

    async with stage.harness(app) as h:
        world.undo = broken  # type: ignore[method-assign]
        run = await h.start(saga)
        await h.settle()
        await run.cancel("enough")
        await h.settle()
        info = await run.info()
        assert info.state is RunState.ROLLING_BACK
        assert [(wait.location, wait.kind.value) for wait in info.waits] == [("~undo/a", "retry")]
        assert await run.cancel("again") is False


async def test_the_holder_of_a_cancelled_run_learns_of_it_and_its_interrupted_body_is_not_undone(
    stage: Stage, world: World
) -> None:
    app = Registry()
    begun = asyncio.Event()

    async def endless() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "?"

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.step("endless", endless, undo=world.undo)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(saga)
        await begun.wait()
        await run.cancel("stop")
        with pytest.raises(RunCancelled):
            await run.result()
        assert world.undone == ["a"]


async def test_a_run_that_exceeds_max_run_rolls_back_and_is_cancelled(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.receive("never")

    async with stage.harness(app) as h:
        run = await h.start(saga, max_run=60)
        with pytest.raises(RunCancelled, match="max_run"):
            await run.result()
        assert world.undone == ["a"]


async def test_undo_goes_back_through_loops_joins_races_and_broken_joins(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
            await ctx.step("item", world.do, f"item{state}", undo=world.undo)
            await ctx.sleep(1)
            return Break(state) if state == 7 else Continue(state + 1)

        async def slow(ctx: Context) -> None:
            await world.step(ctx, "loser")
            await ctx.sleep(100)

        async def quick(ctx: Context) -> None:
            await ctx.sleep(5)
            await world.step(ctx, "winner")

        async def broken(ctx: Context) -> None:
            await ctx.sleep(5)
            raise ValueError("broken")

        async def sound(ctx: Context) -> None:
            await ctx.sleep(1)
            await world.step(ctx, "sound")

        await ctx.loop("l", body, 0, keep=1, every=2)
        await ctx.race("r", {"slow": slow, "quick": quick})
        try:
            await ctx.join("j", {"broken": broken, "sound": sound})
        except JoinFailed:
            raise Rollback("all of it") from None

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="all of it"):
            await h.execute(saga)
        assert world.undone == ["sound", "winner", "loser", *(f"item{n}" for n in range(7, -1, -1))]


async def test_an_undo_is_retried_while_the_run_is_rolling_back(stage: Stage, world: World) -> None:
    app = Registry()

    def undo(name: str) -> None:
        if step_info().attempt < 3:
            raise OSError("busy")
        world.undo(name)

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.step("b", world.do, "b", undo=undo, retry=Retry(initial=100, jitter=0))
        raise ValueError("oh")

    async with stage.harness(app) as h:
        run = await h.start(saga)
        await h.settle()
        info = await run.info()
        assert (info.state, info.error and info.error.message) == (RunState.ROLLING_BACK, "oh")
        with pytest.raises(RunFailed, match="oh"):
            await run.result()
        assert world.undone == ["b", "a"]


async def test_an_undo_that_used_up_its_attempts_blocks_the_run_with_the_rest_still_to_do(
    stage: Stage, world: World
) -> None:
    app = Registry()

    def undo(name: str) -> None:
        raise Fatal("the airline is closed")

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.step("b", world.do, "b", undo=undo)
        raise ValueError("oh")

    async with stage.harness(app) as h:
        run = await h.start(saga)
        await h.advance(7200)
        info = await run.info()
        assert (info.state, info.ready_at) == (RunState.BLOCKED, None)
        assert info.error is not None
        assert "the airline is closed" in info.error.message
        assert "~undo/b undo failed" in await facts(run)
        assert world.undone == []


async def test_an_undo_that_the_code_no_longer_has_blocks_the_run_until_it_does(stage: Stage, world: World) -> None:
    old, new, fixed = Registry(), Registry(), Registry()

    @old.workflow("saga")
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.receive("never")

    @new.workflow("saga")
    async def forgetful(ctx: Context) -> None:
        await ctx.step("a", world.do, "a")
        await ctx.receive("never")

    fixed.workflow("saga")(saga.function)

    async with stage.harness(old) as h:
        run_id = (await h.start("saga")).id
        await h.settle()
    async with stage.harness(new) as h:
        await h.run(run_id).cancel("stop")
        await h.settle()
        info = await h.run(run_id).info()
        assert info.state is RunState.BLOCKED
        assert info.error is not None
        assert "no longer has an undo function for 'a'" in info.error.message
        assert info.ready_at is not None
    async with stage.harness(fixed) as h:
        with pytest.raises(RunCancelled):
            await h.run(run_id).result()
        assert world.undone == ["a"]


async def test_steps_before_continue_as_new_are_not_undone(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context, generation: int) -> Any:
        await ctx.step("s", world.do, f"s{generation}", undo=world.undo)
        if generation == 1:
            return await ctx.continue_as_new(2)
        raise ValueError("oh")

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed):
            await h.execute(saga, 1)
        assert world.undone == ["s2"]


async def test_children_follow_their_close_policy_when_the_rollback_starts(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> None:
        await world.step(ctx, "child")
        await ctx.receive("never")

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.start(child, on_close="cancel")
        await ctx.sleep(5)
        raise ValueError("oh")

    async with stage.harness(app) as h:
        run = await h.start(saga)
        with pytest.raises(RunFailed):
            await run.result()
        await h.settle()
        (info,) = [one async for one in h.list(parent_id=run.id)]
        assert info.state is RunState.CANCELLED
        assert sorted(world.undone) == ["a", "child"]


@pytest.mark.parametrize("undo", [5, "refund"])
async def test_an_undo_that_is_not_a_function_is_refused_at_the_call(stage: Stage, undo: Any) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> str:
        try:
            await ctx.step("a", lambda: 1, undo=undo)
        except InvalidRequest as error:
            return str(error)
        return "?"

    async with stage.harness(app) as h:
        assert await h.execute(saga) == f"undo={undo!r}: expected a function that takes the step's result"
    with pytest.raises(InvalidRequest):
        app.step(undo=undo)


async def test_a_result_that_cannot_be_stored_fails_the_step_that_has_an_undo(stage: Stage, world: World) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.step("odd", object, undo=world.undo)

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="object"):
            await h.execute(saga)
        assert world.undone == ["a"]


async def test_a_crash_during_a_rollback_repeats_only_unrecorded_undos(stage: Stage, world: World) -> None:
    app = Registry()
    reached = asyncio.Event()

    async def undo(name: str) -> None:
        world.undo(name)
        if name == "b" and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()

    @app.workflow
    async def saga(ctx: Context) -> None:
        for name in "abc":
            await ctx.step(name, world.do, name, undo=undo)
        raise ValueError("oh")

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(saga)
        await reached.wait()
        await h.crash_worker()
        await h.start_worker()
        with pytest.raises(RunFailed, match="oh"):
            await run.result()
        assert world.undone == ["c", "b", "b", "a"]


async def test_an_iteration_before_the_first_mark_is_undone_even_if_the_next_fails_early(
    stage: Stage, world: World
) -> None:
    """Nothing is pruned yet, so the code still knows the undo of the iteration before the failed one."""
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        async def body(ctx: Context, number: int) -> Continue[int] | Break[None]:
            if number == 11:
                raise ValueError("before it does anything")
            await ctx.step("item", world.do, f"item{number}", undo=world.undo)
            return Continue(number + 1)

        await ctx.loop("items", body, 1)

    async with stage.harness(app) as h:
        run = await h.start(saga)
        with pytest.raises(RunFailed, match="before it does anything"):
            await run.result()
        assert world.undone == [f"item{number}" for number in range(10, 0, -1)]


async def test_a_pruned_iteration_that_did_more_than_the_kept_ones_is_undone_like_them(
    stage: Stage, world: World
) -> None:
    app = Registry()

    @app.workflow
    async def saga(ctx: Context) -> None:
        async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
            for place in range(4 if state == 0 else 1):
                await ctx.step("reserve", world.do, f"{state}.{place}", undo=world.undo)
            await ctx.sleep(1)
            return Break(state) if state == 5 else Continue(state + 1)

        await ctx.loop("l", body, 0, keep=1, every=1)
        raise Rollback("all of it")

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="all of it"):
            await h.execute(saga)
        assert world.undone == ["5.0", "4.0", "3.0", "2.0", "1.0", "0.3", "0.2", "0.1", "0.0"]


async def test_a_run_that_diverged_can_be_cancelled_if_the_code_still_has_the_undo(stage: Stage, world: World) -> None:
    old, new = Registry(), Registry()

    @old.workflow("saga")
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.step("b", lambda: 1)
        await ctx.receive("never")

    @new.workflow("saga")
    async def other(ctx: Context) -> None:
        await world.step(ctx, "a")
        await ctx.sleep(1)

    async with stage.harness(old) as h:
        run_id = (await h.start("saga")).id
        await h.settle()
        await h.stop_worker()
    async with stage.harness(new) as h:
        await h.run(run_id).cancel("stop")
        with pytest.raises(RunCancelled):
            await h.run(run_id).result()
        assert world.undone == ["a"]


@pytest.mark.parametrize("change", ["swapped", "renamed", "inserted"])
async def test_code_that_diverges_before_a_step_undoes_nothing(stage: Stage, world: World, change: str) -> None:
    old, new = Registry(), Registry()

    @old.workflow("saga")
    async def saga(ctx: Context) -> None:
        await world.step(ctx, "a")
        await world.step(ctx, "b")
        await ctx.receive("never")

    @new.workflow("saga")
    async def other(ctx: Context) -> None:
        names = {"swapped": "ba", "renamed": "xb", "inserted": "xab"}[change]
        for name in names:
            await world.step(ctx, name)
        await ctx.receive("never")

    async with stage.harness(old) as h:
        run_id = (await h.start("saga")).id
        await h.settle()
    async with stage.harness(new) as h:
        await h.run(run_id).cancel("stop")
        await h.advance(3600)
        info = await h.run(run_id).info()
        assert info.state is RunState.BLOCKED
        assert "no longer has an undo function" in str(info.error)
        assert (world.undone, h.executed) == ([], [])
    async with stage.harness(old) as h:
        with pytest.raises(RunCancelled):
            await h.run(run_id).result()
        assert world.undone == ["b", "a"]
