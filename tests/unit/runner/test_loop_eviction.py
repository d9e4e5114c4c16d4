"""Leaving memory: every coroutine is closed, its cleanup runs up to the next await, and nothing is reported."""

from __future__ import annotations

import asyncio
import collections
import gc
import logging
import sys
import threading
import types
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any

import anyio
import pytest

from holdfast.runner.eviction import ROUND_LIMIT
from holdfast.runner.loop import current_run_loop
from tests.unit.runner.loop_rig import Rig, Workflow, evict_runs, run

__all__ = ["evict_runs"]  # a fixture that pytest finds by its name


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that evictions are silent: no log line, no warning, no ignored exception.

    Other tests of this process may have left garbage, and threads that still end. Their output does not count.
    """
    gc.collect()
    caplog.set_level(logging.DEBUG)
    here = threading.get_ident()
    ignored: list[str] = []
    warned: list[str] = []

    def hear_ignored(error: Any) -> None:
        if threading.get_ident() == here:
            ignored.append(str(error.exc_value))

    def hear_warning(message: Warning | str, *_: Any) -> None:
        if threading.get_ident() == here:
            warned.append(str(message))

    hook, sys.unraisablehook = sys.unraisablehook, hear_ignored
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear_warning  # type: ignore[assignment]
        yield
        gc.collect()
    sys.unraisablehook = hook
    assert [record for record in caplog.records if record.thread == here] == []
    assert warned == []
    assert ignored == []


def test_finally_runs_up_to_its_next_await_and_its_requests_do_not_count() -> None:
    async def workflow(rig: Rig) -> None:
        try:
            await rig.step("work")
        except asyncio.CancelledError:
            rig.note("was told that it was cancelled")
        except Exception:  # noqa: BLE001 - the point is that it is not reached
            rig.note("was told that something failed")
        finally:
            rig.note("cleanup", asyncio.get_running_loop() is rig.loop, asyncio.current_task() is rig.root)
            await rig.step("undo")
            rig.note("never reached")

    rig = Rig(workflow).start()
    rig.loop.evict()

    assert rig.trace == [("cleanup", True, True)]
    assert rig.pending == {}
    assert rig.loop.is_closed()
    assert rig.loop.unfinished == []


def test_cleanup_that_awaits_does_not_look_like_an_error_to_the_code_around_it() -> None:
    @asynccontextmanager
    async def managed(rig: Rig) -> AsyncIterator[None]:
        try:
            yield
        finally:
            rig.note("manager")
            await rig.step("undo manager")

    async def inner(rig: Rig) -> None:
        try:
            await rig.step("work")
        finally:
            rig.note("inner")
            await rig.step("undo")

    async def workflow(rig: Rig) -> None:
        try:
            async with managed(rig):
                await inner(rig)
        except Exception:  # noqa: BLE001 - the point is that it is not reached
            rig.note("was told that something failed")
        finally:
            rig.note("outer")

    rig = Rig(workflow).start()
    rig.loop.evict()

    assert rig.trace == ["inner", "manager", "outer"]


def test_code_behind_awaitable_objects_is_closed_too() -> None:
    class Handle:
        def __init__(self, rig: Rig) -> None:
            self.rig = rig

        def __await__(self) -> Generator[Any, None, Any]:
            return self.wait().__await__()

        async def wait(self) -> None:
            try:
                await self.rig.step("work")
            finally:
                self.rig.note("handle")
                await self.rig.step("undo")

    async def workflow(rig: Rig) -> None:
        try:
            await Handle(rig)
        except Exception:  # noqa: BLE001 - the point is that it is not reached
            rig.note("was told that something failed")

    rig = Rig(workflow).start()
    rig.loop.evict()

    assert rig.trace == ["handle"]


def test_tasks_are_closed_newest_first() -> None:
    async def branch(rig: Rig, name: str) -> None:
        try:
            await rig.step(name)
        finally:
            rig.note(name)

    async def workflow(rig: Rig) -> None:
        try:
            await asyncio.gather(*[branch(rig, name) for name in "abc"])
        finally:
            rig.note("root")

    rig = Rig(workflow).start()
    rig.loop.evict()

    assert rig.trace == ["c", "b", "a", "root"]


def test_task_group_timeout_and_nested_cleanup() -> None:
    async def branch(rig: Rig, name: str) -> None:
        try:
            async with asyncio.timeout(5):
                await rig.step(name)
        finally:
            async with asyncio.timeout(5):
                rig.note(name)
                await rig.step("undo")

    async def workflow(rig: Rig) -> None:
        async with asyncio.TaskGroup() as group:
            for name in "ab":
                group.create_task(branch(rig, name))
            await branch(rig, "body")

    rig = Rig(workflow).start()
    started = list(rig.timers)
    rig.loop.evict()

    assert rig.trace == ["b", "a", "body"]
    assert list(rig.timers) == started, "the host hears nothing of timers that start or end in an eviction"
    assert rig.cancelled_timers == []


LIMIT = 10 * ROUND_LIMIT
"""Maximum number of swallowed exceptions before the code gives up, so that a failing test ends."""


async def _asking(rig: Rig) -> None:
    await rig.step("work")


async def _pausing(rig: Rig) -> None:
    await asyncio.sleep(60)


async def _nesting(rig: Rig) -> None:
    while True:
        try:
            await rig.step("work")
        except BaseException:
            rig.note("nested")
            if len(rig.trace) > LIMIT:
                raise


async def _grouping_forever(rig: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(asyncio.sleep(60))


@pytest.mark.parametrize("wait", [_asking, _pausing, _nesting, _grouping_forever])
def test_code_that_swallows_everything_is_destroyed_on_its_own_loop(wait: Workflow) -> None:
    seen: list[tuple[bool, bool]] = []

    async def workflow(rig: Rig) -> None:
        itself = asyncio.current_task()  # a reference cycle, which only the collector could free
        while len(seen) < LIMIT:
            try:
                await wait(rig)
            except BaseException:  # noqa: BLE001 - as the worst code does
                seen.append((current_run_loop() is rig.loop, asyncio.current_task() is itself))

    rig = Rig(workflow).start()
    coroutine = weakref.ref(rig.root.get_coro())
    rig.loop.evict()

    assert coroutine() is None
    assert ROUND_LIMIT < len(seen) + len(rig.trace) < 2 * ROUND_LIMIT
    assert set(seen) <= {(True, True)}, "it ran outside of its run"
    assert any("in workflow" in line or "in _" in line for line in rig.loop.survivors)


def test_code_that_swallows_everything_is_never_freed_while_others_refer_to_it() -> None:
    seen: list[bool] = []

    async def workflow(rig: Rig) -> None:
        while len(seen) < LIMIT:
            try:
                await asyncio.sleep(60)
            except BaseException:  # noqa: BLE001 - as the worst code does
                seen.append(current_run_loop() is rig.loop)

    rig = Rig(workflow).start()
    kept = [rig.root.get_coro()]
    rig.loop.evict()
    kept.clear()
    gc.collect()

    assert seen == [True] * ROUND_LIMIT


def test_a_task_that_never_started_and_one_created_in_cleanup_are_closed() -> None:
    async def never(rig: Rig) -> None:
        rig.note("started")

    async def workflow(rig: Rig) -> None:
        try:
            await rig.step("work")
        finally:
            rig.note("cleanup")
            await asyncio.create_task(never(rig))

    unstarted = Rig(workflow)
    unstarted.loop.evict()
    assert unstarted.trace == []

    rig = Rig(workflow).start()
    rig.loop.evict()
    assert rig.trace == ["cleanup"]


def test_coroutines_that_were_created_and_not_yet_awaited_are_closed_after_the_cleanup() -> None:
    async def workflow(rig: Rig) -> None:
        last = rig.step("last")
        by_name = {"x": rig.step("x")}
        try:
            for step in [rig.step("a"), rig.step("b")]:
                await step
            await by_name["x"]
        finally:
            rig.note("cleanup")
            await last

    rig = run(workflow, "a")
    rig.loop.evict()

    assert rig.trace == ["cleanup"]


def test_suspended_generators_are_closed() -> None:
    async def numbers(rig: Rig, name: str) -> AsyncIterator[int]:
        try:
            yield 1
            await rig.step(name)
            yield 2
        finally:
            rig.note(name)
            await rig.step("undo")

    class Keeper:
        def __init__(self) -> None:
            self.me = self  # so that only the collector would find it
            self.generator: AsyncIterator[int] | None = None

    async def workflow(rig: Rig) -> None:
        keeper = Keeper()
        keeper.generator = numbers(rig, "kept")
        await anext(keeper.generator)
        async for _ in numbers(rig, "left"):
            break
        async for _ in numbers(rig, "waiting"):
            pass

    rig = Rig(workflow).start()
    assert list(rig.pending) == ["waiting"]
    rig.loop.evict()

    assert rig.trace == ["waiting", "left", "kept"]


def test_cleanup_sees_the_context_of_its_task() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def branch(rig: Rig, name: str) -> None:
        variable.set(name)
        try:
            await rig.step(name)
        finally:
            rig.note(variable.get())

    async def workflow(rig: Rig) -> None:
        await asyncio.gather(branch(rig, "a"), branch(rig, "b"))

    rig = Rig(workflow).start()
    rig.loop.evict()

    assert rig.trace == ["b", "a"]


def test_a_foreign_coroutine_that_yields_anything_is_closed_too() -> None:
    class Foreign(Coroutine[Any, Any, None]):
        def __init__(self, inner: Coroutine[Any, Any, None]) -> None:
            self.inner = inner

        def send(self, value: Any) -> Any:
            return self.inner.send(value)

        def throw(self, *error: Any) -> Any:
            return self.inner.throw(*error)

        def close(self) -> None:
            self.inner.close()

        def __await__(self) -> Generator[Any, Any, None]:
            raise NotImplementedError

    @types.coroutine
    def nonsense() -> Generator[object, None, None]:
        yield "no future"

    async def inner(rig: Rig) -> None:
        try:
            await rig.step("work")
        finally:
            rig.note("cleanup")
            await nonsense()

    async def workflow(rig: Rig) -> None:
        await asyncio.create_task(Foreign(inner(rig)))

    rig = Rig(workflow).start()
    assert list(rig.pending) == ["+1/work"]
    rig.loop.evict()

    assert rig.trace == ["cleanup"]


def test_error_in_cleanup_is_ignored() -> None:
    async def branch(rig: Rig, error: BaseException) -> None:
        try:
            await rig.step("work")
        finally:
            raise error

    async def workflow(rig: Rig) -> None:
        await asyncio.gather(
            branch(rig, ValueError()), branch(rig, SystemExit()), branch(rig, asyncio.CancelledError())
        )

    rig = Rig(workflow).start()
    rig.loop.evict()

    assert rig.loop.is_closed()
    assert rig.loop.system_exit is None


def test_refused_call_in_cleanup_is_no_violation() -> None:
    async def workflow(rig: Rig) -> None:
        try:
            await rig.step("work")
        finally:
            await asyncio.to_thread(print)

    rig = Rig(workflow).start()
    rig.loop.evict()

    assert rig.loop.violation is None


def test_interrupt_in_cleanup_is_raised_after_everything_is_closed() -> None:
    async def branch(rig: Rig, name: str) -> None:
        try:
            await rig.step(name)
        finally:
            rig.note(name)
            if name == "b":
                raise KeyboardInterrupt

    async def workflow(rig: Rig) -> None:
        await asyncio.gather(branch(rig, "a"), branch(rig, "b"))

    rig = Rig(workflow).start()
    with pytest.raises(KeyboardInterrupt):
        rig.loop.evict()

    assert rig.trace == ["b", "a"]
    assert rig.loop.is_closed()


def test_evicted_run_is_inert() -> None:
    events = [asyncio.Event()]

    async def waiting() -> None:
        await events[0].wait()

    async def workflow(rig: Rig) -> None:
        await asyncio.gather(rig.step("a"), waiting(), asyncio.sleep(5))

    rig = Rig(workflow).start()
    timer = rig.timers["+3/~timer"]
    rig.loop.evict()
    rig.loop.evict()
    events[0].set()
    timer.cancel()

    assert rig.loop.call_soon(rig.note, "late").cancelled()
    assert rig.loop.call_later(1, rig.note, "late").cancelled()
    assert rig.loop.violation is None
    assert rig.trace == []
    with pytest.raises(RuntimeError, match="run run-1 has left memory"):
        rig.loop.drive()


def test_unretrieved_failure_is_not_logged_when_the_run_suspends() -> None:
    async def failing() -> None:
        raise ValueError("looked at later")

    async def workflow(rig: Rig) -> None:
        task = asyncio.create_task(failing())
        await rig.step("a day")
        await task

    rig = Rig(workflow).start()
    rig.loop.evict()


def test_objects_left_by_a_finished_run_are_closed() -> None:
    async def background(rig: Rig) -> None:
        try:
            await rig.step("background")
        finally:
            rig.note("closed")

    async def workflow(rig: Rig) -> str:
        asyncio.create_task(background(rig))  # noqa: RUF006 - forgetting it is the point
        await asyncio.sleep(0)
        return "done"

    rig = Rig(workflow).start()
    assert [task.get_name() for task in rig.loop.unfinished] == ["+1"]
    rig.loop.evict()

    assert rig.root.result() == "done"
    assert rig.trace == ["closed"]


async def _sequential(rig: Rig) -> None:
    try:
        await rig.step("a")
    finally:
        await rig.step("undo")


async def _gathering(rig: Rig) -> None:
    await asyncio.gather(*[_sequential(rig) for _ in range(5)])


async def _grouping(rig: Rig) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(_sequential(rig))
        await rig.step("body")


async def _shielding(rig: Rig) -> None:
    await asyncio.wait_for(asyncio.shield(_sequential(rig)), 60)


async def _sleeping(rig: Rig) -> None:
    await asyncio.wait([asyncio.create_task(asyncio.sleep(5)) for _ in range(3)], return_when=asyncio.FIRST_COMPLETED)


async def _completing(rig: Rig) -> None:
    for earliest in asyncio.as_completed([_sequential(rig) for _ in range(3)], timeout=5):
        await earliest


async def _queueing(rig: Rig) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    lock = asyncio.Lock()
    await lock.acquire()
    await asyncio.gather(queue.get(), queue.join(), lock.acquire(), asyncio.Event().wait(), rig.step("a"))


async def _failing(rig: Rig) -> None:
    async def fail() -> None:
        raise ValueError("looked at later")

    task = asyncio.create_task(fail())
    await rig.step("a")
    await task


FORMS: list[Workflow] = [_sequential, _gathering, _grouping, _shielding, _sleeping, _completing, _queueing, _failing]


def test_a_thousand_evictions_are_silent() -> None:
    for number in range(1_000):
        Rig(FORMS[number % len(FORMS)], run_id=f"run-{number}").start().loop.evict()
    Rig.made.clear()


# Futures of `shield` and the parts of `as_completed` form reference cycles anyway.
@pytest.mark.parametrize(
    "form", [form for form in FORMS if form not in (_shielding, _completing)], ids=lambda form: form.__name__
)
def test_an_evicted_run_leaves_nothing_to_the_collector(form: Workflow) -> None:
    """Objects are compared one by one, because the collector may find garbage of other threads meanwhile."""
    gc.disable()
    try:
        rig = Rig(form).start()
        Rig.made.clear()
        parts = parts_of(rig)
        rig.loop.evict()
        del rig
        left = [name for name, part in parts if part() is not None]
    finally:
        gc.enable()

    assert len(parts) > 5
    assert left == []


def parts_of(rig: Rig) -> list[tuple[str, weakref.ref[Any]]]:
    """Return the objects of a run in memory: its loop, tasks, futures, timers, coroutines, and what those refer to."""
    found: list[Any] = [rig]
    seen = {id(rig)}
    for part in found:  # grows during the iteration
        for held in gc.get_referents(part):
            if id(held) not in seen and _is_part(held):
                seen.add(id(held))
                found.append(held)
    return [(repr(part), weakref.ref(part)) for part in found if getattr(type(part), "__weakrefoffset__", 0)]


def _is_part(held: object) -> bool:
    kind = type(held)
    if isinstance(held, Enum):
        return False
    if kind in (list, tuple, dict, set, collections.deque, types.CoroutineType, types.CellType, types.MethodType):
        return True
    return kind.__module__.startswith(("_asyncio", "asyncio.", "holdfast.runner.", "tests."))


def test_an_evicted_loop_does_not_hold_its_host() -> None:
    rig = Rig(_sequential).start()
    Rig.made.clear()
    loop, host = rig.loop, weakref.ref(rig)
    loop.evict()
    del rig

    assert host() is None


@pytest.mark.parametrize("act", [Rig.fire, lambda rig: None], ids=["cancelled", "evicted"])
def test_task_groups_of_anyio_work_and_can_be_evicted(act: Callable[[Rig], None]) -> None:
    async def branch(rig: Rig, name: str) -> None:
        try:
            await rig.step(name)
        finally:
            with anyio.CancelScope(shield=True):
                rig.note(await rig.step("undo"))

    async def workflow(rig: Rig) -> None:
        with anyio.move_on_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(branch, rig, "a")
                group.start_soon(branch, rig, "b")
        rig.note("left")

    rig = Rig(workflow).start()
    assert list(rig.pending) == ["+1/a", "+2/b"]
    act(rig)
    for location in list(rig.pending):
        if location.endswith("undo"):
            rig.finish(location, location)
    rig.loop.evict()

    assert rig.loop.violation is None
    assert rig.trace in ([], ["+1/undo", "+2/undo", "left"], ["+2/undo", "+1/undo", "left"])
