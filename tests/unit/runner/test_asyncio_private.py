"""The private parts of asyncio that holdfast needs still exist and behave as it needs."""

from __future__ import annotations

import asyncio
import gc
import runpy
import sys
from asyncio import events, tasks
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextvars import Context, copy_context
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

from holdfast.runner import asyncio_private
from holdfast.runner.asyncio_private import (
    AS_COMPLETED,
    AS_COMPLETED_GIVEN,
    FUTURE_IS_AWAITED,
    GATHER_CHILDREN,
    GATHER_INIT,
    TASK_AWAITS,
    TASK_STEP_TYPE,
    WAIT_FOR,
    WRAPPING_COROUTINE,
    GatheringFuture,
    RoundLoop,
    enter_task,
    get_running_loop_or_none,
    leave_task,
    run_handle,
    set_running_loop,
)
from holdfast.runner.loop import asker_of

NEEDED: list[tuple[ModuleType | type, str, str]] = [
    (events, "_get_running_loop", "see whether code runs on the loop of a run"),
    (events, "_set_running_loop", "make the loop of a run the running loop"),
    (tasks, "_enter_task", "close the coroutine of a task as code of that task"),
    (tasks, "_leave_task", "end what _enter_task began"),
    (tasks, "_GatheringFuture", "give the future of asyncio.gather a hash"),
    (asyncio.Handle, "_run", "run the callbacks of the event loop of the simulation"),
]
if sys.version_info >= (3, 13):
    NEEDED += [(tasks, "_AsCompletedIterator", "start the arguments of asyncio.as_completed in their order")]
if sys.version_info >= (3, 14):
    NEEDED += [(tasks, "_swap_current_task", "set the worker's task aside")]


class Recorder(asyncio.SelectorEventLoop):
    """A loop that records the code that creates tasks and futures."""

    def __init__(self) -> None:
        self.debug_askers: list[FrameType] = []
        self.created: list[tuple[str, FrameType]] = []
        self.soon: list[Callable[..., object]] = []
        super().__init__()

    def get_debug(self) -> bool:
        self.debug_askers.append(sys._getframe(1))
        return False

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        self.created.append((coro.__name__, asker_of(sys._getframe(1))))
        return super().create_task(coro, **options)

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        self.soon.append(callback)
        return super().call_soon(callback, *args, context=context)

    def askers(self) -> list[CodeType]:
        return [frame.f_code for _, frame in self.created]


@pytest.fixture
def loop() -> Iterator[Recorder]:
    loop = Recorder()
    yield loop
    loop.close()


class Later:
    """An awaitable that is neither a coroutine nor a future."""

    def __await__(self) -> Generator[Any, Any, int]:
        yield
        return 3


async def one() -> int:
    return 1


async def two() -> int:
    return 2


@pytest.mark.parametrize(("owner", "name", "use"), NEEDED, ids=[name for _, name, _ in NEEDED])
def test_a_python_without_a_private_name_is_refused_with_its_purpose(
    owner: ModuleType | type, name: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)

    with pytest.raises(ImportError) as refused:
        runpy.run_path(asyncio_private.__file__)

    said = str(refused.value)
    assert f"which has no {owner.__name__}.{name}. holdfast uses it to {use}" in said
    assert ". Without it, " in said


def test_the_running_loop_of_a_thread_can_be_read_and_set(loop: Recorder) -> None:
    none = get_running_loop_or_none()
    set_running_loop(loop)
    try:
        found = get_running_loop_or_none(), asyncio.get_running_loop()
    finally:
        set_running_loop(None)

    assert none is None, "_get_running_loop no longer answers None where no loop runs; holdfast asks it there"
    assert found == (loop, loop), "_set_running_loop no longer sets the running loop; a run could not be driven"
    assert get_running_loop_or_none() is None, "_set_running_loop(None) no longer ends it; a drive could not leave"


def test_a_task_can_be_entered_and_left_from_outside(loop: Recorder) -> None:
    task = loop.create_task(one())
    set_running_loop(loop)  # as in a drive
    try:
        enter_task(loop, task)
        entered = asyncio.current_task(loop)
        leave_task(loop, task)
        left = asyncio.current_task(loop)
    finally:
        set_running_loop(None)
    loop.run_until_complete(task)

    assert entered is task, "_enter_task no longer makes a task the current one; cleanup of evicted runs would see none"
    assert left is None, "_leave_task no longer ends it; no other task could be entered"


if sys.version_info >= (3, 14):

    def test_the_current_task_of_a_thread_can_be_set_aside(loop: Recorder) -> None:
        from holdfast.runner.asyncio_private import swap_current_task

        async def drive() -> tuple[object, ...]:
            task = swap_current_task(loop, None)
            during = asyncio.current_task()
            return task, during, swap_current_task(loop, task), asyncio.current_task()

        outer = loop.create_task(drive())

        assert loop.run_until_complete(outer) == (outer, None, None, outer), (
            "_swap_current_task no longer sets the current task and answers with the one before; "
            "a run could not be driven from inside a task"
        )


def test_gather_makes_its_future_where_it_is_recognised(loop: Recorder) -> None:
    async def gather() -> Any:
        children = [loop.create_task(one()), loop.create_task(two())]
        loop.debug_askers.clear()
        future = asyncio.gather(*children)
        askers = [frame.f_locals["self"] for frame in loop.debug_askers if frame.f_code is GATHER_INIT]
        return future, askers, getattr(future, GATHER_CHILDREN), children, await future

    future, askers, held, children, _ = loop.run_until_complete(gather())

    assert type(future) is GatheringFuture, "asyncio.gather no longer returns a _GatheringFuture; its hash would vary"
    assert askers == [future], (
        "_GatheringFuture.__init__ no longer asks its loop for get_debug() with itself as the local `self`; "
        "holdfast gives it a hash there that is the same on every replay"
    )
    assert held == children, "_GatheringFuture._children no longer has what was gathered; evicted runs would stay"


def test_the_future_of_gather_accepts_another_class(loop: Recorder) -> None:
    class Ours(GatheringFuture):  # type: ignore[misc]
        serial: int

        def __hash__(self) -> int:
            return self.serial

    async def gather() -> Any:
        future: Any = asyncio.gather(one(), two())
        future.__class__ = Ours
        future.serial = 4711
        return hash(future), await future

    assert loop.run_until_complete(gather()) == (4711, [1, 2]), (
        "the class of a _GatheringFuture can no longer be replaced; its hash would differ on every replay"
    )


def test_as_completed_makes_its_tasks_where_it_is_recognised(loop: Recorder) -> None:
    async def complete() -> Any:
        given: list[Awaitable[int]] = [one(), two(), Later()]
        loop.created.clear()
        ended = asyncio.as_completed(given)
        first = next(ended)  # before Python 3.13 it starts here
        locals_of = [frame.f_locals.get(AS_COMPLETED_GIVEN) for _, frame in loop.created]
        return given, locals_of, sorted([await first, *[await later for later in ended]])

    given, seen, ended = loop.run_until_complete(complete())

    assert ended == [1, 2, 3]
    assert loop.askers() == [AS_COMPLETED] * 3, (
        "asyncio.as_completed no longer makes its tasks in the code that holdfast recognises; "
        "they would begin in the order of addresses, which differs on every replay"
    )
    assert seen == [given] * 3, (
        f"asyncio.as_completed no longer keeps what it was given in the local {AS_COMPLETED_GIVEN!r}; "
        "holdfast finds the order there in which to begin"
    )
    assert sorted(name for name, _ in loop.created) == [WRAPPING_COROUTINE, "one", "two"], (
        f"asyncio.ensure_future no longer wraps an awaitable in a coroutine named {WRAPPING_COROUTINE}; "
        "holdfast would begin it twice in asyncio.as_completed"
    )


def test_the_creator_of_a_task_is_visible_behind_ensure_future(loop: Recorder) -> None:
    async def ask() -> None:
        loop.created.clear()
        await asyncio.ensure_future(one())
        await asyncio.ensure_future(Later())
        await asyncio.gather(one())

    loop.run_until_complete(ask())

    assert loop.askers() == [ask.__code__, ask.__code__, asyncio.gather.__code__], (
        "between the loop and the code that asks for a task stands code of asyncio that holdfast does not know; "
        "it would not recognise asyncio.as_completed and asyncio.wait_for"
    )


def test_the_task_of_wait_for_is_recognised(loop: Recorder) -> None:
    async def wait() -> int:
        loop.created.clear()
        return await asyncio.wait_for(one(), 60)

    assert loop.run_until_complete(wait()) == 1
    assert loop.askers() == ([WAIT_FOR] if sys.version_info < (3, 12) else []), (
        "asyncio.wait_for makes a task that holdfast does not recognise; operations in it would have other locations, "
        "and a run that was begun on an older Python would not replay"
    )


def test_a_future_yielded_by_a_coroutine_looks_awaited_until_that_is_reset(loop: Recorder) -> None:
    future: asyncio.Future[int] = loop.create_future()

    async def wait() -> int:
        return await future

    coroutine = wait()
    yielded = coroutine.send(None)
    looked = yielded, getattr(future, FUTURE_IS_AWAITED)
    setattr(future, FUTURE_IS_AWAITED, False)
    coroutine.close()
    future.set_result(5)

    assert looked == (future, True), (
        f"a future that was yielded no longer has {FUTURE_IS_AWAITED}; a future that an evicted run awaited would fail "
        "with another error where it is awaited next"
    )
    assert loop.run_until_complete(wait()) == 5


def test_a_task_exposes_the_future_it_awaits(loop: Recorder) -> None:
    async def wait() -> tuple[object, object]:
        future: asyncio.Future[int] = loop.create_future()

        async def inner() -> int:
            return await future

        task = loop.create_task(inner())
        await asyncio.sleep(0)
        awaited = getattr(task, TASK_AWAITS)
        future.set_result(1)
        await task
        return awaited, future

    awaited, future = loop.run_until_complete(wait())

    assert awaited is future, (
        f"Task.{TASK_AWAITS} is no longer the future that the task awaits; "
        "evicted runs would stay in memory until the collector finds them"
    )


def test_the_step_of_a_task_that_awaited_a_foreign_future_has_the_error(loop: Recorder) -> None:
    elsewhere = Recorder()
    foreign = elsewhere.create_future()

    async def wait() -> None:
        with pytest.raises(RuntimeError, match="attached to a different loop"):
            await foreign

    loop.run_until_complete(wait())
    elsewhere.close()
    steps = [step for step in loop.soon if type(step).__name__ == TASK_STEP_TYPE]
    errors = [held for step in steps for held in gc.get_referents(step) if isinstance(held, RuntimeError)]

    assert len(errors) == 1, (
        f"the callback that steps a task is no longer a {TASK_STEP_TYPE} that holds the error; holdfast would not see "
        "that workflow code awaited a future of another loop and caught the error"
    )


def test_a_handle_can_be_run(loop: Recorder) -> None:
    called: list[object] = []

    run_handle(asyncio.Handle(called.append, ("soon",), loop, copy_context()))
    run_handle(asyncio.TimerHandle(1.0, called.append, ("later",), loop, copy_context()))

    assert called == ["soon", "later"], "Handle._run no longer calls back; the simulation would do nothing"


def test_a_loop_of_rounds_runs_until_it_is_stopped() -> None:
    class Rounds(RoundLoop):
        count = 0

        def run_round(self) -> None:
            self.count += 1
            if self.count == 3:
                self.stop()

    rounds = Rounds()
    rounds.run_forever()
    rounds.close()

    assert rounds.count == 3, "BaseEventLoop.run_forever no longer calls _run_once; the simulation would do nothing"
