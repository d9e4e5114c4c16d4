"""Calls that workflow code may not make on its loop: refused at the call, named with their line, and remembered."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from holdfast.core.errors import WorkflowViolation
from holdfast.runner.loop import CALLBACK_LIMIT, RunLoop
from holdfast.runner.violation import explain_foreign
from tests.rows import each_row
from tests.unit.runner.loop_rig import Rig, evict_runs, run

__all__ = ["evict_runs"]  # a fixture that pytest finds by its name

ANSWERED = {
    "call_at",
    "call_exception_handler",
    "call_later",
    "call_soon",
    "create_future",
    "create_task",
    "get_debug",
    "get_task_factory",
    "is_closed",
    "is_running",
    "time",
}
REFUSED = sorted(name for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_") and name not in ANSWERED)


def line_of(function: Callable[..., Any], text: str) -> str:
    """Return the place of a line in a nested function, in the format of holdfast."""
    lines, first = inspect.getsourcelines(function)
    offset = next(number for number, line in enumerate(lines) if text in line)
    return f"test_loop_violation.py:{first + offset} in {function.__name__}"


@each_row("name", REFUSED)
def test_every_other_method_of_a_loop_is_refused(name: str) -> None:
    async def workflow(rig: Rig) -> None:
        getattr(asyncio.get_running_loop(), name)()

    rig = Rig(workflow).start()
    error = rig.root.exception()

    assert isinstance(error, WorkflowViolation)
    assert f"loop.{name}() at {line_of(workflow, 'getattr')}" in str(error)
    assert "run run-1" in str(error)
    assert "Move the call into a step" in str(error)
    assert rig.loop.violation is error


async def _to_thread() -> None:
    await asyncio.to_thread(print)


async def _open_connection() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def _start_server() -> None:
    await asyncio.start_server(print, "127.0.0.1", 0)


async def _subprocess() -> None:
    await asyncio.create_subprocess_exec(sys.executable, stdout=subprocess.DEVNULL)


async def _getaddrinfo() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def _threadsafe() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(print)


@pytest.mark.parametrize(
    "call",
    [_to_thread, _open_connection, _start_server, _subprocess, _getaddrinfo, _threadsafe],
    ids=lambda f: f.__name__,
)
def test_io_and_threads_are_refused_with_the_line_of_the_user(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def workflow(rig: Rig) -> None:
        await call()

    rig = Rig(workflow).start()

    assert isinstance(rig.root.exception(), WorkflowViolation)
    assert f"test_loop_violation.py:{inspect.getsourcelines(call)[1] + 1} in {call.__name__}" in str(rig.loop.violation)


def test_swallowed_violation_is_kept_and_the_first_one_counts() -> None:
    async def workflow(rig: Rig) -> str:
        for call in (_to_thread, _getaddrinfo):
            try:
                await call()
            except Exception:  # noqa: BLE001 - as careless code does
                rig.note("swallowed")
        return str(await rig.step("goes on"))

    rig = run(workflow, "goes on")

    assert rig.trace == ["swallowed", "swallowed"]
    assert rig.root.result() == "goes on"
    assert "run_in_executor" in str(rig.loop.violation)


@pytest.mark.parametrize("kind", [iter, set, frozenset], ids=lambda kind: kind.__name__)
def test_as_completed_needs_its_coroutines_in_an_order(kind: Callable[[list[Any]], Any]) -> None:
    async def workflow(rig: Rig) -> None:
        # One coroutine only: Python warns about those that as_completed does not reach.
        for earliest in asyncio.as_completed(kind([rig.step("a")])):
            await earliest

    rig = Rig(workflow).start()

    assert isinstance(rig.root.exception(), WorkflowViolation)
    assert line_of(workflow, "as_completed(kind") in str(rig.loop.violation)
    assert "Pass a list" in str(rig.loop.violation)


def test_as_completed_takes_tasks_from_a_set() -> None:
    async def workflow(rig: Rig) -> list[Any]:
        tasks = {asyncio.create_task(rig.step(name)) for name in "ab"}
        return [await earliest for earliest in asyncio.as_completed(tasks)]

    assert run(workflow, "b", "a").root.result() == ["b", "a"]


@pytest.fixture
def outer() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def _await_it(future: asyncio.Future[None]) -> Coroutine[Any, Any, None]:
    async def waiting() -> None:
        await future

    return waiting()


async def _by_shield(future: asyncio.Future[None]) -> None:
    await asyncio.shield(future)


async def _by_gather(future: asyncio.Future[None]) -> None:
    await asyncio.gather(asyncio.sleep(0), future)


async def _by_group(future: asyncio.Future[None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_await_it(future))


@pytest.mark.parametrize("way", [_await_it, _by_shield, _by_gather, _by_group], ids=lambda way: way.__name__)
def test_awaiting_an_object_of_another_loop_is_recognised(
    way: Callable[[asyncio.Future[None]], Coroutine[Any, Any, None]], outer: asyncio.AbstractEventLoop
) -> None:
    async def workflow(rig: Rig) -> None:
        await way(outer.create_future())

    error = Rig(workflow).start().root.exception()
    assert error is not None
    violation = explain_foreign(error)

    assert isinstance(violation, WorkflowViolation)
    assert "of another event loop at test_loop_violation.py:" in str(violation)
    assert violation.__cause__ is not None


def test_lock_of_another_loop_is_recognised_and_other_errors_are_not(outer: asyncio.AbstractEventLoop) -> None:
    lock = asyncio.Lock()

    async def hold() -> None:
        await lock.acquire()
        with pytest.raises(TimeoutError):  # contended, and therefore bound to this loop
            async with asyncio.timeout(0):
                await lock.acquire()

    async def workflow(rig: Rig) -> None:
        async with lock:
            pass

    outer.run_until_complete(hold())
    error = Rig(workflow).start().root.exception()

    assert error is not None
    assert line_of(workflow, "async with lock") in str(explain_foreign(error))
    assert explain_foreign(RuntimeError("something else")) is None
    assert explain_foreign(ExceptionGroup("group", [ValueError("no"), KeyError("attached")])) is None


def test_wake_from_outside_is_recorded_with_its_line_and_wakes_nothing() -> None:
    events: list[asyncio.Event] = []

    async def workflow(rig: Rig) -> None:
        events.append(asyncio.Event())
        await events[0].wait()
        rig.note("woken")

    rig = Rig(workflow).start()
    rig.loop.on_outside_wake = lambda: rig.note("told")
    events[0].set()
    rig.loop.drive()

    assert rig.trace == ["told"]
    here = "test_wake_from_outside_is_recorded_with_its_line_and_wakes_nothing"
    assert f"woken from outside at test_loop_violation.py:{_line('events[0].set()', here)} in {here}" in str(
        rig.loop.violation
    )


def _line(text: str, function: str) -> int:
    lines, first = inspect.getsourcelines(globals()[function])
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_wake_of_one_run_by_another_does_not_blame_the_other() -> None:
    events: list[asyncio.Event] = []

    async def waiting(rig: Rig) -> None:
        events.append(asyncio.Event())
        await events[0].wait()

    async def waking(rig: Rig) -> str:
        events[0].set()
        return "fine"

    victim = Rig(waiting, run_id="victim").start()
    innocent = Rig(waking, run_id="innocent").start()

    assert innocent.root.result() == "fine"
    assert innocent.loop.violation is None
    assert "run victim: the run was woken from outside" in str(victim.loop.violation)
    assert f"in {waking.__name__}" in str(victim.loop.violation)


def test_thread_that_completes_a_future_of_a_run_is_not_blamed_either() -> None:
    outside: concurrent.futures.Future[str] = concurrent.futures.Future()

    async def workflow(rig: Rig) -> str:
        return await asyncio.wrap_future(outside)

    rig = Rig(workflow).start()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(outside.set_result, "late").result()

    assert "woken from outside" in str(rig.loop.violation)
    assert not rig.root.done()


def test_timer_created_or_cancelled_from_outside_is_dead_and_recorded() -> None:
    async def workflow(rig: Rig) -> None:
        await asyncio.sleep(5)

    rig = Rig(workflow).start()
    rig.timers["~timer"].cancel()
    first = str(rig.loop.violation)
    made = rig.loop.call_later(1, rig.note, "rang")

    assert "woken from outside" in first
    assert made.cancelled()
    assert list(rig.timers) == ["~timer"]


def test_spinning_run_is_stopped_and_named() -> None:
    async def workflow(rig: Rig) -> None:
        while True:
            await asyncio.sleep(0)

    rig = Rig(workflow).start()

    assert f"run run-1: the workflow spins at {line_of(workflow, 'sleep(0)')}: {CALLBACK_LIMIT} callbacks" in str(
        rig.loop.violation
    )
    assert not rig.loop.is_running()


def test_as_many_callbacks_as_the_limit_are_not_spinning() -> None:
    async def workflow(rig: Rig) -> None:
        for _ in range(CALLBACK_LIMIT - 1):
            await asyncio.sleep(0)

    rig = Rig(workflow).start()

    assert rig.root.done()
    assert rig.loop.violation is None


def test_failing_callback_is_logged_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    async def workflow(rig: Rig) -> str:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        return str(await rig.step("a"))

    rig = run(workflow, "a")

    assert rig.root.result() == "a"
    [record] = caplog.records
    assert (record.name, record.levelno) == ("holdfast.workflow", logging.ERROR)
    assert "run run-1: exception in callback" in record.getMessage()
    assert vars(record)["error"] == "ZeroDivisionError"


def test_task_that_cannot_be_stepped_ends_the_drive_with_a_violation() -> None:
    async def other() -> None: ...

    async def workflow(rig: Rig) -> None:
        # As if this thread were inside another task of this loop, which C code refuses to leave.
        task = asyncio.current_task()
        assert task is not None
        asyncio.tasks._leave_task(rig.loop, task)
        asyncio.tasks._enter_task(rig.loop, asyncio.ensure_future(other()))

    rig = Rig(workflow)
    rig.start()

    assert "a task cannot continue" in str(rig.loop.violation)


def test_replaced_running_loop_is_a_violation_and_the_thread_is_restored() -> None:
    async def workflow(rig: Rig) -> None:
        asyncio._set_running_loop(None)
        await asyncio.sleep(0)

    async def innocent(rig: Rig) -> str:
        return str(await rig.step("a"))

    rig = Rig(workflow).start()
    assert rig.loop.violation is not None
    assert asyncio._get_running_loop() is None
    assert run(innocent, "a").root.result() == "a"


def test_loop_of_asyncio_cannot_be_started_inside() -> None:
    async def workflow(rig: Rig) -> None:
        inner = _to_thread()
        try:
            asyncio.run(inner)
        finally:
            inner.close()

    assert isinstance(Rig(workflow).start().root.exception(), RuntimeError)


def test_standstill_report_names_the_users_line_of_each_task() -> None:
    async def deeper(event: asyncio.Event) -> None:
        await event.wait()

    async def branch(event: asyncio.Event) -> None:
        await deeper(event)

    async def workflow(rig: Rig) -> None:
        await asyncio.gather(branch(asyncio.Event()), branch(asyncio.Event()))

    rig = Rig(workflow).start()

    waiting = line_of(deeper, "event.wait")
    assert rig.loop.standstill_report() == [line_of(workflow, "gather"), waiting, waiting]


def test_standstill_report_of_a_run_that_has_not_started_or_has_ended() -> None:
    async def workflow(rig: Rig) -> None: ...

    rig = Rig(workflow)
    assert rig.loop.standstill_report() == [line_of(workflow, "async def workflow")]

    rig.start()
    assert rig.loop.standstill_report() == []


def test_run_loop_passes_as_an_event_loop() -> None:
    assert issubclass(RunLoop, asyncio.AbstractEventLoop)
