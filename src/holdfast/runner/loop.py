"""The run loop: the small deterministic event loop that executes the code of one run.

It is driven synchronously, one fact at a time. `drive` feeds a fact, runs every ready callback in order, and returns
when the run stands still. Time does not pass in between; the host sets it. Plain asyncio works on it unchanged and
gives the same result on every replay. Calls that leave the run (sockets, threads, other loops) raise an error.
The loop knows nothing of stores, steps or entries. It reports timers to its `LoopHost`, and the owner of a future
settles it inside a drive.

Four things differ from asyncio, because replay needs them:

* tasks and futures hash by creation number, because `TaskGroup` and `asyncio.wait` keep them in sets;
* the loop keeps the first violation, even if user code catches the exception;
* the loop holds unfinished tasks and async generators strongly, so that garbage collection schedules nothing;
* a run leaves memory only by `evict`.

The tasks, futures and timers of a run are here too, and the settings of a thread that a drive changes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from asyncio.tasks import current_task
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from math import isnan
from sys import _getframe
from types import FrameType
from typing import Any, Protocol, TypeAlias
from zlib import crc32

from holdfast.core.errors import InvalidRequest, WorkflowViolation
from holdfast.core.location import TIMER_NAME, Scope
from holdfast.runner.asyncio_private import (
    AS_COMPLETED,
    AS_COMPLETED_GIVEN,
    ENSURE_FUTURE,
    ENSURE_FUTURE_INNER,
    FUTURE_IS_AWAITED,
    GATHER_INIT,
    TASK_STEP_TYPE,
    WAIT_FOR,
    WRAPPING_COROUTINE,
    GatheringFuture,
    get_running_loop_or_none,
    leave_task,
    set_running_loop,
)
from holdfast.runner.eviction import ROUND_LIMIT, close_generator, close_task, destroy_survivors, release
from holdfast.runner.violation import (
    RefusingLoop,
    awaited_futures,
    explain_foreign,
    place_of_caller,
    place_of_coroutine,
)

# A run that executes more callbacks without a standstill is spinning, as in `while True: await asyncio.sleep(0)`.
CALLBACK_LIMIT = 100_000

_log = logging.getLogger("holdfast.workflow")


def current_run_loop() -> RunLoop | None:
    """Return the loop of the run whose code is running now. None in step bodies, threads and all other code."""
    return driving.loop


class LoopHost(Protocol):
    """The driver of a loop, which owns the run's history. The loop reports every timer of workflow code to it."""

    def timer_started(self, timer: LoopTimer) -> None:
        """Workflow code called `call_at` or `call_later`, directly or through `asyncio.sleep` or `asyncio.timeout`."""

    def timer_cancelled(self, timer: LoopTimer) -> None:
        """Workflow code cancelled the timer before it fired. Not called for a timer that fired."""


def nothing(*_: object) -> None:
    """Do nothing. A cancelled handle has this callback."""


class RunLoop(RefusingLoop):  # type: ignore[misc]  # Any on purpose, see RefusingLoop
    """The event loop of one run.

    `violation` is the first call of the code that only a step may make. The result of a drive with a violation is
    discarded, even if the code caught the exception. `system_exit` is the first `sys.exit()` of the code. It fails this
    run and never ends the worker. `on_outside_wake`, if set, is called when something outside woke this run while it
    was not driven. That may happen on another thread or inside another run, so the callback may only set a flag.
    """

    def __init__(self, run_id: str, host: LoopHost, *, now: float) -> None:
        self.run_id = run_id
        self.violation: WorkflowViolation | None = None
        self.system_exit: SystemExit | None = None
        self.on_outside_wake: Callable[[], None] | None = None
        self.is_evicting = False  # `evict` sets it for good
        self.survivors: list[str] = []  # lines of code that swallowed every attempt to close it
        self.host = host
        self._now = now
        # The queue exists only while the loop is driven, and from `spawn` to the first drive. This saves 760 bytes per
        # run at standstill, and a callback that finds no queue comes from outside the run.
        self._ready: deque[LoopHandle] | None = None
        self._is_running = False
        self._is_closed = False
        self._is_quiet = False
        # In order of creation. Finished ones stay until the next pruning. asyncio holds both weakly, so garbage
        # collection would decide when the cleanup of a forgotten one runs.
        self._tasks: list[RunTask] = []
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._prune_tasks_at = self._prune_generators_at = 32
        self._prepared: list[RunTask] = []
        self._root: RunTask | None = None
        self._root_scope = Scope("")
        self._first_serial = first_serial(run_id)

    def __repr__(self) -> str:
        return f"<RunLoop of run {self.run_id}>"

    # Called by the host.

    @property
    def now(self) -> float:
        """The instant of the last fact, in seconds, as `time()` returns it. It never decreases."""
        return self._now

    @now.setter
    def now(self, instant: float) -> None:
        if not instant >= self._now:
            raise ValueError(f"the time of run {self.run_id} must not go back from {self._now} to {instant}")
        self._now = instant

    @property
    def scope(self) -> Scope:
        """The scope in which the running code counts its names: that of its task, or of the run outside of tasks."""
        task = current_task(self)
        return task.scope if type(task) is RunTask else self._root_scope

    @property
    def unfinished(self) -> list[RunTask]:
        """The tasks that have not ended, in order of creation."""
        return [task for task in self._tasks if not task.done()]

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> RunTask:
        """Create the root task, which starts with the next drive.

        Its context is empty, not a copy: a context variable of the driver would differ on replay.
        """
        if self._root is not None or self.is_evicting:
            raise RuntimeError(f"run {self.run_id} already has a root task, or has left memory")
        if self._ready is None:
            self._ready = deque()
        self._root = self._make_task(coroutine, self._root_scope, None, Context(), {})
        return self._root

    def drive(self, action: Callable[..., None] = nothing, *args: Any) -> None:
        """Call `action` as code of the run, then run callbacks in order until the run stands still.

        Drives never nest. `KeyboardInterrupt` propagates; after it the run can only be evicted.
        """
        outside = self._enter()
        try:
            action(*args)
            assert self._ready is not None
            self._drain(self._ready)
        finally:
            self._leave(outside)

    def check_inside(self) -> None:
        """Raise if the caller is not code of this run but a step body, a thread or another run."""
        # During eviction this raises nothing: code could catch the error and ask again, without end.
        if driving.loop is not self and (driving.loop is not None or not self.is_evicting):
            raise InvalidRequest(
                f"the context of run {self.run_id} was used outside of its workflow code, perhaps in a step body; "
                "pass values to the step as arguments, and return its results instead"
            )

    def fire(self, timer: LoopTimer) -> None:
        """Run a timer's callback in this drive. Call it only in the action of a drive."""
        if self._ready is None:
            raise RuntimeError(f"a timer of run {self.run_id} can fire only inside a drive")
        if not timer.fired and not timer.cancelled():
            timer.fired = True
            self._ready.append(timer)

    def evict(self, *, is_over: bool = True) -> None:
        """Close every unfinished task, newest first, and then the loop. A second call does nothing.

        Call it when the run suspends and also when it has ended: tasks that it spawned may still be open.
        Futures and timers of this run are dead afterwards. `is_over` means that the run will not be claimed again.
        """
        if self.is_evicting:
            return
        outside = self._enter()
        self.is_evicting = True
        self._ready = None
        # Log an exception that was never retrieved when the run is over, not each time it suspends.
        self._is_quiet = not is_over or self._root is None or not self._root.done()
        try:
            interrupt = self._close_all()
        finally:
            self._is_closed = True
            self._leave(outside)
            self.on_outside_wake = None
            del self.host  # breaks the reference cycle between the loop and its host
        if interrupt is not None:
            raise interrupt

    def standstill_report(self) -> list[str]:
        """Return the line where each unfinished task waits, such as `shop.py:12 in checkout`."""
        return [place_of_coroutine(task.get_coro()) for task in self.unfinished]

    # Called by user code, mostly through asyncio.

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> LoopHandle:
        ready = self._ready
        if ready is None:
            return self._stray()
        if type(callback).__name__ == TASK_STEP_TYPE:
            self._check_step(callback)
        # Not `context or ...`: an empty context is falsy.
        handle = LoopHandle(callback, args, copy_context() if context is None else context)
        ready.append(handle)
        return handle

    def call_soon_threadsafe(self, *_: object, **__: object) -> LoopHandle:
        # Workflow code gets the error. A thread that finishes work for this run is not at fault.
        if get_running_loop_or_none() is self:
            raise self.refuse("loop.call_soon_threadsafe()")
        return self._stray()

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> LoopTimer:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> LoopTimer:
        if isnan(when):
            raise ValueError("the deadline of a timer must be a number, not NaN")
        if self._ready is None:
            self._stray()
            return LoopTimer(nothing, (), Context(), owner=self, location="", deadline=when)
        context = copy_context() if context is None else context
        location = self.scope.locate(TIMER_NAME)
        timer = LoopTimer(callback, args, context, owner=self, location=location, deadline=when)
        self.host.timer_started(timer)
        return timer

    def timer_cancelled(self, timer: LoopTimer) -> None:
        """Called by a timer that is cancelled before it fired."""
        if self._ready is None:
            self._stray()
        else:
            self.host.timer_cancelled(timer)

    def create_future(self) -> RunFuture:
        future = RunFuture(loop=self)
        future.serial = self._first_serial + self.scope.next_number()
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,  # options of later versions: Python 3.14 passes eager_start
    ) -> RunTask:
        asker = asker_of(_getframe(1))
        if asker.f_code is AS_COMPLETED:
            return self._next_of_as_completed(asker, coro)
        # In Python 3.11 `wait_for` creates a hidden task. It opens no scope, because later versions have no such task.
        scope = self.scope if asker.f_code is WAIT_FOR else self.scope.spawn()
        return self._make_task(coro, scope, name, copy_context() if context is None else context, options)

    def create_branch(self, coroutine: Coroutine[Any, Any, Any], scope: Scope) -> RunTask:
        """Create a task that counts its names in the given scope. For holdfast's own operations, not for users."""
        return self._make_task(coroutine, scope, None, copy_context(), {})

    @contextmanager
    def within(self, scope: Scope) -> Iterator[None]:
        """Let the running task count its names in another scope inside this block."""
        task = current_task(self)
        assert isinstance(task, RunTask), "only code of the run has a scope"
        before, task.scope = task.scope, scope
        try:
            yield
        finally:
            task.scope = before

    @property
    def is_in_root(self) -> bool:
        """True if the running code is the workflow function itself, not a task or branch of it."""
        return self._root is not None and current_task(self) is self._root

    def get_task_factory(self) -> None:
        """Return None. Libraries such as anyio ask for it, so it must not raise."""

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def get_debug(self) -> bool:
        # `gather` creates its future from a private class and never calls `create_future`. But each new future calls
        # `get_debug` in its constructor. That is the only moment to give it a stable hash like all others.
        caller = _getframe(1)
        if caller.f_code is GATHER_INIT:
            future = caller.f_locals["self"]
            future.__class__ = RunGather
            future.serial = self._first_serial + self.scope.next_number()
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # This may only log: finalizers call it too, perhaps inside another run's drive or after the end of this run.
        if not self._is_quiet:
            message, error = context.get("message") or "unhandled exception", context.get("exception")
            # Log only the class: the text of a user's error may contain private values.
            about = {"run_id": self.run_id, "error": type(error).__name__}
            _log.error("run %s: %s (%s)", self.run_id, message, about["error"], extra=about)
            _log.debug("run %s: %s", self.run_id, message, exc_info=error, extra=about)

    # Violations.

    def refuse(self, call: str, instead: str = "") -> WorkflowViolation:
        """Record a violation by this call and return the error to raise. `instead` names a call that is allowed."""
        return self._violate(
            f"workflow code called {call} at {place_of_caller()}: only a step may do that. "
            f"Move the call into a step: await ctx.step('name', function){instead and f'; or use {instead}'}"
        )

    def _violate(self, text: str) -> WorkflowViolation:
        violation = WorkflowViolation(f"run {self.run_id}: {text}")
        if self.violation is None and not self.is_evicting:
            self.violation = violation
        return violation

    def _check_step(self, step: object) -> None:
        """Record a violation if a task awaited a future of another loop, even if the code catches the error.

        asyncio steps such a task once more with the error. Only `gc.get_referents` can see the error inside that step.
        """
        for held in gc.get_referents(step):
            if isinstance(held, RuntimeError) and (foreign := explain_foreign(held)) is not None:
                task = getattr(step, "__self__", None)
                coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
                self._violate(str(foreign).replace("an unknown line", place_of_coroutine(coroutine)))
                # Reset the flag: a future that looks awaited makes the next turn raise an error that hides the cause.
                for future in awaited_futures(coroutine):
                    setattr(future, FUTURE_IS_AWAITED, False)

    def _stray(self) -> LoopHandle:
        """Record a wake-up from outside. It raises nothing, because the caller is not at fault, and wakes nothing."""
        if not self.is_evicting:
            self._violate(
                f"the run was woken from outside at {place_of_caller()}, by code that does not belong to it. "
                f"Wait for that in a step, or use ctx.receive or ctx.wait_event"
            )
            if self.on_outside_wake is not None:
                self.on_outside_wake()
        return LoopHandle(nothing, (), Context())

    # Inside a drive.

    def _enter(self) -> Outside:
        if self._is_closed:
            raise RuntimeError(f"run {self.run_id} has left memory")
        if driving.loop is not None or self._is_running:
            raise RuntimeError(f"drives do not nest: run {self.run_id} inside {driving.loop!r}")
        outside = take_over(self, self._hold_generator)
        if self._ready is None:
            self._ready = deque()
        self._is_running = True
        return outside

    def _leave(self, outside: Outside) -> None:
        self._ready = None
        self._is_running = False
        if get_running_loop_or_none() is not self:
            self._violate("workflow code replaced the running event loop")
        if self.violation is not None:
            free_thread(self)
        restore_thread(outside)

    def _drain(self, ready: deque[LoopHandle]) -> None:
        for _ in range(CALLBACK_LIMIT):
            if not ready:
                # From Python 3.12 on, the error of a task keeps this frame alive. The frame must not keep the task.
                handle = None
                return
            handle = ready.popleft()
            try:
                handle.context.run(handle.callback, *handle.args)
            except KeyboardInterrupt:
                raise
            except SystemExit as error:
                self.system_exit = self.system_exit or error
            except BaseException as error:  # noqa: BLE001 - a callback of the user may raise anything
                if isinstance(getattr(handle.callback, "__self__", None), asyncio.Task):
                    # An error of user code ends in its task. This is an error of stepping the task, which will never
                    # move again. To continue would leave a run that waits forever.
                    if get_running_loop_or_none() is self:  # else `_leave` reports that the running loop was replaced
                        self._violate(f"a task cannot continue: {error!r}")
                    return
                self.call_exception_handler(
                    {"message": f"exception in callback {handle.callback!r}", "exception": error}
                )
        if ready:
            task = getattr(ready[0].callback, "__self__", None)
            place = f" at {place_of_coroutine(task.get_coro())}" if isinstance(task, asyncio.Task) else ""
            self._violate(f"the workflow spins{place}: {CALLBACK_LIMIT} callbacks ran without a standstill")

    def _make_task(
        self,
        coroutine: Coroutine[Any, Any, Any],
        scope: Scope,
        name: str | None,
        context: Context,
        options: dict[str, Any],
    ) -> RunTask:
        # Set everything before `__init__`, which hashes the task and with eager_start even runs it.
        task = RunTask.__new__(RunTask)
        task.serial = self._first_serial + self.scope.next_number()
        task.scope = scope
        task.run_context = context
        # Unnamed tasks get the name of their scope. asyncio numbers tasks per process, which differs on replay.
        RunTask.__init__(task, coroutine, loop=self, name=name or scope.path[:-1] or "root", context=context, **options)
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) > self._prune_tasks_at:
            tasks[:] = self.unfinished
            self._prune_tasks_at = 2 * len(tasks) + 32
        return task

    def _next_of_as_completed(self, asker: FrameType, coroutine: Coroutine[Any, Any, Any]) -> RunTask:
        """Return a task for `as_completed`, which puts its arguments into a set and starts them in address order.

        The first call creates all tasks in the order of the arguments. After that, the order in which they are
        returned does not matter, because they all end in one set.
        """
        if getattr(coroutine, "__name__", "") == WRAPPING_COROUTINE:
            coroutine.close()  # `as_coroutine` below replaces it
        if not self._prepared:
            given = asker.f_locals[AS_COMPLETED_GIVEN]
            if isinstance(given, (Iterator, set, frozenset)):
                raise self._violate(
                    f"asyncio.as_completed at {place_of_caller()} starts coroutines in no fixed order. "
                    f"Pass a list instead of this {type(given).__name__}"
                )
            scope, context = self.scope, copy_context()
            self._prepared = [
                self._make_task(as_coroutine(item), scope.spawn(), None, context.copy(), {})
                for item in dict.fromkeys(given)
                if not asyncio.isfuture(item)
            ]
            self._prepared.reverse()
        return self._prepared.pop()

    def _hold_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        generators = self._generators
        generators.append(generator)
        if len(generators) > self._prune_generators_at:
            generators[:] = [held for held in generators if getattr(held, "ag_frame", None) is not None]
            self._prune_generators_at = 2 * len(generators) + 32

    def _close_all(self) -> KeyboardInterrupt | None:
        """Close tasks and generators in rounds, because cleanup may create new ones. Return a Ctrl-C, if one came."""
        interrupt: KeyboardInterrupt | None = None
        closed: list[RunTask] = []
        for _ in range(ROUND_LIMIT):
            unfinished, generators = self.unfinished, self._generators
            if self._root is None or not (unfinished or generators):
                break
            self._tasks, self._generators = [], []
            for task in reversed(unfinished):
                interrupt = close_task(task) or interrupt
            for generator in reversed(generators):
                interrupt = close_generator(generator, self._root) or interrupt
            closed += unfinished
        self._root = None
        if not closed:
            self._tasks, self._generators = [], []
            return interrupt
        # Destroy survivors before `release`, which settles the futures that they await: then an await would return.
        self.survivors += destroy_survivors(closed)
        for task in reversed(self.unfinished):  # tasks that survivors created while they were destroyed
            interrupt = close_task(task) or interrupt
        # Release last: code that still runs must see other tasks unchanged.
        for task in closed + self.unfinished:
            release(task)
        self._tasks, self._generators = [], []
        return interrupt


class LoopHandle:
    """A callback in the ready queue. `call_soon` returns it."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        # Replace the callback instead of setting a flag, so that the drive needs no check per handle.
        self.callback, self.args = nothing, ()

    def cancelled(self) -> bool:
        return self.callback is nothing


class LoopTimer(LoopHandle):
    """A timer. `call_at` and `call_later` return it.

    `location` is fixed when the timer is created. `deadline` is in seconds on the scale of `loop.time()`.
    """

    __slots__ = ("deadline", "fired", "location", "owner")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
        *,
        owner: RunLoop,
        location: str,
        deadline: float,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.owner = owner
        self.location = location
        self.deadline = deadline
        self.fired = False

    def when(self) -> float:
        return self.deadline

    def cancel(self) -> None:
        if self.callback is nothing:
            return
        self.callback, self.args = nothing, ()
        # `asyncio.sleep` cancels its timer even after it has fired. The owner does not need to know that.
        if not self.fired:
            self.owner.timer_cancelled(self)

    def __repr__(self) -> str:
        state = "fired" if self.fired else "cancelled" if self.cancelled() else "waiting"
        return f"<LoopTimer {self.location!r} at {self.deadline} {state}>"


class OfRun:
    """An awaitable of a run.

    It hashes by its creation number: `TaskGroup`, `asyncio.wait` and `as_completed` keep them in sets, and a set of
    objects that hash by address iterates in another order on every replay.

    While a run leaves memory, an await of it never returns and never raises, even if it is settled. Otherwise code that
    swallows every exception and awaits again would occupy the worker forever.
    """

    __slots__ = ()
    _loop: RunLoop
    serial: int

    def __hash__(self) -> int:
        return self.serial

    def __await__(self) -> Generator[Any, None, Any]:
        if self._loop.is_evicting:
            return asyncio.Future(loop=self._loop).__await__()
        return super().__await__()  # type: ignore[misc, no-any-return]  # that of the future beside this base

    __iter__ = __await__


class RunFuture(OfRun, asyncio.Future[Any]):
    """A future of a run."""

    __slots__ = ("serial",)
    serial: int


class RunTask(OfRun, asyncio.Task[Any]):
    """A task of a run. It counts the names of its operations in its own `scope`."""

    __slots__ = ("run_context", "scope", "serial")
    serial: int
    scope: Scope
    run_context: Context  # tasks of Python 3.11 do not expose their context


class RunGather(OfRun, GatheringFuture):  # type: ignore[misc]  # a private class, so mypy does not know it
    """The future that `asyncio.gather` returns inside a run. `RunLoop.get_debug` creates it."""


def first_serial(run_id: str) -> int:
    """Return the first serial number of a run.

    It differs between runs, because asyncio (up to 3.13) and libraries keep the tasks of all runs in global tables,
    and equal hashes would make these tables quadratic. It differs only in high bits. The order of a set follows the low
    bits, so it depends on creation numbers alone. A fork, which replays the history of another run, iterates its sets
    in the same order. Hashes of 32 bits have no room for this; there every run begins at 0, because order matters more.
    """
    return (crc32(run_id.encode()) & 0xFFFFF) << 40 if sys.maxsize > 2**32 else 0


def asker_of(frame: FrameType) -> FrameType:
    """Return the frame that asks for a task: the caller if `frame` is one of `ensure_future`, else `frame` itself."""
    while True:
        code = frame.f_code
        if code is not ENSURE_FUTURE_INNER and code is not ENSURE_FUTURE and code.co_name != "<setcomp>":
            return frame
        assert frame.f_back is not None, "a drive is further down on the stack"
        frame = frame.f_back


def as_coroutine(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    """Return an awaitable as a coroutine, which a task needs."""
    if asyncio.iscoroutine(awaitable):
        return awaitable

    async def wait() -> Any:
        return await awaitable

    return wait()


if sys.version_info >= (3, 14):
    from holdfast.runner.asyncio_private import swap_current_task


# While workflow code runs, the thread's running loop and its hooks for async generators are those of the run. From
# Python 3.14 on, a thread also has only one current task across all loops.

# The state of the thread before a drive: the running loop, the current task (if there is one per thread), the hooks.
# It is a plain tuple, because every fact needs one.
Outside: TypeAlias = tuple[asyncio.AbstractEventLoop | None, asyncio.Task[Any] | None, Any]


class _Driving(threading.local):
    """The loop that a thread drives now.

    asyncio also knows the running loop. But up to Python 3.11 it asks the system for the process id each time, and
    several such calls per step took a tenth of a worker's time.
    """

    loop: RunLoop | None = None


driving = _Driving()


def take_over(loop: RunLoop, hold_generator: Callable[[AsyncGenerator[Any, Any]], None]) -> Outside:
    """Make `loop` the thread's running loop."""
    outer, outer_task = get_running_loop_or_none(), None
    if sys.version_info >= (3, 14) and outer is not None:
        # Otherwise no task of the run could be entered when a drive starts inside a task.
        outer_task = swap_current_task(outer, None)
    outside = (outer, outer_task, sys.get_asyncgen_hooks())
    # Without its own hooks, a generator would register with the outer loop, which would close it there.
    sys.set_asyncgen_hooks(hold_generator, None)
    set_running_loop(loop)
    driving.loop = loop
    return outside


def restore_thread(outside: Outside) -> None:
    """Restore the state that `take_over` found."""
    outer, outer_task, hooks = outside
    driving.loop = None
    set_running_loop(outer)
    sys.set_asyncgen_hooks(*hooks)
    if sys.version_info >= (3, 14) and outer is not None and outer_task is not None:
        swap_current_task(outer, outer_task)


def free_thread(loop: asyncio.AbstractEventLoop) -> None:
    """Leave a task of `loop` that could not leave by itself. From 3.14 on, no other task could be entered otherwise."""
    set_running_loop(loop)
    task = current_task(loop)
    if task is not None:
        leave_task(loop, task)
