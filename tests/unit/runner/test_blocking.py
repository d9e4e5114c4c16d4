"""Blocking code on the run loop: a plain function in a greenlet waits, fails, is cancelled and leaves memory."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

from holdfast import InvalidRequest, Retry, StepFailed, SyncContext
from holdfast.core.checkpoint import Block, Finish
from holdfast.core.states import RunState
from holdfast.runner.blocking import Fiber, wait
from tests.unit.runner.turn_rig import Rig, evict_turns, message

pytestmark = pytest.mark.usefixtures(evict_turns.__name__)

ONCE = Retry(max_attempts=1)


def fibers() -> int:
    """Return the number of fibers in memory."""
    gc.collect()
    return sum(type(one) is Fiber for one in gc.get_objects())


def begun(workflow: Callable[..., Any]) -> Rig:
    return Rig(workflow).begin()


def test_a_plain_function_gets_its_values_in_order() -> None:
    def workflow(ctx: SyncContext) -> list[Any]:
        found: list[Any] = [ctx.step("a", str), ctx.step("a", str)]
        ctx.sleep(60)
        return [*found, ctx.receive("go", timeout=60)]

    rig = begun(workflow).play()
    rig.pass_to(60)
    rig.arrive(message(1, "go", "7", seconds=60))

    assert rig.result() == '["a","a#2",7]'


def test_an_error_is_raised_where_the_code_waits_and_can_be_caught_there() -> None:
    def workflow(ctx: SyncContext) -> str:
        try:
            ctx.step("a", str, retry=ONCE)
        except StepFailed as failure:
            return f"{failure.message}, {ctx.step('b', str)}"
        return "nothing was raised"

    rig = begun(workflow)
    rig.start()
    rig.fail("a", ValueError("no"))

    assert rig.play().result() == '"no, b"'


def test_an_error_of_the_function_has_the_line_that_raised_it() -> None:
    def deep(ctx: SyncContext) -> None:
        ctx.step("a", str)
        raise KeyError("lost")

    def workflow(ctx: SyncContext) -> None:
        deep(ctx)

    rig = begun(workflow).play()

    assert isinstance(rig.turn.outcome, Finish)
    error = rig.turn.outcome.error
    assert error is not None
    assert error.type == "KeyError"
    assert "in deep" in error.traceback
    assert "in workflow" in error.traceback


def test_code_waits_from_deep_recursion_and_from_below_c_code() -> None:
    def workflow(ctx: SyncContext) -> Any:
        def dive(depth: int) -> int:
            return int(ctx.step("deep", int)) if depth == 0 else dive(depth - 1)

        def weigh(name: str) -> int:
            return -int(ctx.step("weigh", int, name))

        return [dive(400), sorted(["a", "b", "c"], key=weigh), max(map(weigh, "xyz"))]

    weights = iter(range(100))

    assert begun(workflow).play(lambda _: next(weights)).result() == '[0,["c","b","a"],-4]'


def test_a_user_generator_may_wait_where_it_is_consumed() -> None:
    def workflow(ctx: SyncContext) -> list[str]:
        def pages() -> Iterator[str]:
            for number in range(3):
                yield f"{number}{ctx.step('page', str)}"

        return list(pages())

    assert begun(workflow).play().result() == '["0page","1page#2","2page#3"]'


def test_context_variables_belong_to_the_code_that_set_them() -> None:
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")

    def workflow(ctx: SyncContext) -> list[str]:
        def inside() -> list[str]:
            colour.set("green")
            ctx.step("a", str)
            return [colour.get()]

        seen = [colour.get()]
        colour.set("red")
        ctx.step("b", str)
        seen += contextvars.copy_context().run(inside)
        return [*seen, colour.get()]

    colour.set("of the worker")

    assert begun(workflow).play().result() == '["none","green","red"]'
    assert colour.get() == "of the worker"


def test_concurrent_branches_have_their_own_fibers_contexts_and_scopes() -> None:
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")

    def branch(ctx: SyncContext, number: int) -> list[str]:
        colour.set(f"{colour.get()} {number}")
        task = asyncio.current_task()
        assert task is not None
        return [ctx.step("paint", str), colour.get(), task.get_name()]

    def workflow(ctx: SyncContext) -> Any:
        colour.set("red")
        begin = ctx._branch(branch)
        return wait(asyncio.gather(*(begin(ctx._context, number) for number in range(2))))

    rig = begun(workflow)
    assert rig.start() == ["+1/paint", "+2/paint"]
    rig.finish("+2/paint", "second").finish("+1/paint", "first")

    assert rig.result() == '[["first","red 0","+1"],["second","red 1","+2"]]'


def test_a_cancelled_branch_gets_the_error_where_it_waits() -> None:
    heard: list[str] = []

    def branch(ctx: SyncContext) -> None:
        try:
            ctx.step("slow", str)
        except asyncio.CancelledError:
            heard.append(ctx.step("sweep", str))
            raise

    def workflow(ctx: SyncContext) -> str:
        task = asyncio.ensure_future(ctx._branch(branch)(ctx._context))
        ctx.step("a", str)
        task.cancel()
        wait(asyncio.wait([task]))
        return "cancelled" if task.cancelled() else "not cancelled"

    rig = begun(workflow)
    rig.start()
    rig.finish("a", "a")

    assert rig.play().result() == '"cancelled"'
    assert heard == ["+1/sweep"]


def test_leaving_memory_runs_finally_blocks_up_to_their_next_wait() -> None:
    seen: list[str] = []

    def workflow(ctx: SyncContext) -> None:
        try:
            try:
                ctx.receive("never")
            except Exception:  # noqa: BLE001 - what is tested
                seen.append("an error")
            finally:
                seen.append("inner")
                ctx.step("clean up", str)
                seen.append("too far")
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        finally:
            seen.append("outer")

    rig = begun(workflow)
    rig.turn.evict()

    assert seen == ["inner", "GreenletExit", "outer"]
    assert not rig.startable()


def test_a_run_that_leaves_memory_before_its_start_has_nothing_to_clean_up() -> None:
    def workflow(ctx: SyncContext) -> None:
        raise AssertionError("it never began")

    rig = Rig(workflow)
    rig.turn._loop.spawn(rig.turn.definition.begin(rig.turn._requests.context, "{}"))
    rig.turn.evict()


def test_code_that_swallows_everything_is_abandoned() -> None:
    rounds = 0
    is_stubborn = True

    def workflow(ctx: SyncContext) -> None:
        nonlocal rounds
        while is_stubborn:
            with contextlib.suppress(BaseException):
                ctx.sleep(5)
            rounds += 1

    begun(workflow).turn.evict()

    assert 0 < rounds < 100
    is_stubborn = False  # otherwise it would stay forever
    for fiber in [one for one in gc.get_objects() if type(one) is Fiber and not one.dead]:
        fiber.parent = getcurrent()
        fiber.throw(GreenletExit)


def test_a_thousand_evictions_of_blocking_code_are_silent_and_leave_nothing(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    cleaned = 0

    def workflow(ctx: SyncContext) -> None:
        nonlocal cleaned
        try:
            ctx.step("a", str)
            ctx.receive("never")
        finally:
            cleaned += 1

    def evict_one() -> None:
        Rig(workflow).begin().play().turn.evict()

    before = fibers()
    with caplog.at_level(logging.DEBUG):
        for _ in range(1_000):
            evict_one()

    assert cleaned == 1_000
    assert fibers() == before
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_an_evicted_blocking_run_leaves_nothing_to_the_collector() -> None:
    def workflow(ctx: SyncContext) -> None:
        try:
            ctx.step("a", str, retry=ONCE)
        except StepFailed:
            ctx.sleep(60)

    def evict_one() -> None:
        rig = Rig(workflow).begin()
        rig.start()
        rig.fail("a", ValueError("no"))
        rig.turn.evict()

    evict_one()
    gc.collect()
    gc.disable()
    try:
        before = sum(type(one) is Fiber for one in gc.get_objects())
        evict_one()
        assert sum(type(one) is Fiber for one in gc.get_objects()) == before
    finally:
        gc.enable()


def test_an_interrupt_in_cleanup_propagates_and_an_error_does_not() -> None:
    def workflow(ctx: SyncContext, error: str) -> None:
        try:
            ctx.sleep(5)
        finally:
            raise {"interrupt": KeyboardInterrupt(), "error": ValueError(), "exit": SystemExit()}[error]

    others = [one for one in gc.get_objects() if type(one) is Fiber]  # of other tests, which may not be collected yet
    for harmless in ("error", "exit"):
        Rig(workflow, payload=f'{{"error":"{harmless}"}}').begin().turn.evict()
    rig = Rig(workflow, payload='{"error":"interrupt"}').begin()
    with pytest.raises(KeyboardInterrupt):
        rig.turn.evict()
    known = {id(other) for other in others}
    assert all(fiber.dead for fiber in gc.get_objects() if type(fiber) is Fiber and id(fiber) not in known)


def test_sys_exit_is_a_failure_of_the_run() -> None:
    def workflow(ctx: SyncContext) -> None:
        ctx.step("a", str)
        sys.exit(3)

    rig = begun(workflow).play()

    assert isinstance(rig.turn.outcome, Finish)
    assert rig.turn.outcome.state is RunState.FAILED


def test_a_blocking_call_in_a_user_thread_is_refused() -> None:
    def workflow(ctx: SyncContext) -> str:
        said: list[str] = []

        def body() -> None:
            try:
                ctx.sleep(5)
            except InvalidRequest as error:
                said.append(str(error))

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        return said[0]

    assert "outside of its workflow code" in (begun(workflow).result() or "")


@pytest.mark.parametrize("place", ["callback", "coroutine", "greenlet"])
def test_a_blocking_call_on_a_foreign_context_is_refused(place: str) -> None:
    def workflow(ctx: SyncContext) -> str:
        said: list[str] = []

        def call() -> None:
            try:
                ctx.sleep(5)
            except InvalidRequest as error:
                said.append(str(error))

        async def coroutine() -> None:
            call()

        if place == "callback":
            asyncio.get_running_loop().call_soon(call)
        elif place == "coroutine":
            wait(coroutine())
        else:
            greenlet(call).switch()
        ctx.step("a", str)
        return said[0]

    assert "not by the workflow function" in (begun(workflow).play().result() or "")


def test_a_function_that_returns_a_coroutine_is_blocked_with_the_reason() -> None:
    async def inside(ctx: SyncContext) -> int:
        return 5

    rig = begun(lambda ctx: inside(ctx))  # noqa: PLW0108 - inlined it would be another kind

    assert isinstance(rig.turn.outcome, Block)
    assert "returned a coroutine" in rig.turn.outcome.error.message


def test_a_traceback_inside_ends_at_the_workflow() -> None:
    def workflow(ctx: SyncContext) -> list[str]:
        ctx.step("a", str)
        return [frame.name for frame in traceback.extract_stack()]

    assert begun(workflow).play().result() == '["workflow"]'
