"""The executor: runs step bodies, async ones on the worker's loop, sync ones in threads.

It knows nothing about runs. A body whose result is no longer needed is abandoned: the executor cancels it if
possible, and does not report its outcome, but says when it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import types
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from time import perf_counter
from types import CoroutineType, FunctionType
from typing import Any

from holdfast.runner.operation import StepCall
from holdfast.runner.step_info import StepInfo, current_step

Report = Callable[["Body"], None]


class Body:
    """One attempt at a step, in execution. `is_timed_out`, `error` and `value` hold its outcome."""

    __slots__ = (
        "began",
        "call",
        "context",
        "error",
        "info",
        "is_timed_out",
        "on_end",
        "report",
        "task",
        "timer",
        "value",
    )

    def __init__(self, call: StepCall, info: StepInfo, report: Report, context: Context) -> None:
        self.call = call
        self.info = info
        self.report = report
        self.context = context
        context.run(current_step.set, info)
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_timed_out = False
        self.task: asyncio.Task[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.began = 0.0
        self.on_end: Report | None = None

    @property
    def is_abandoned(self) -> bool:
        return self.info.is_cancelled

    def abandon(self, on_end: Report | None = None) -> bool:
        """Cancel the body, because its result is no longer needed. Returns True if it still executes.

        A thread cannot be cancelled, and async code may take its time to end. `on_end` is called when it has ended.
        """
        self.info.is_cancelled = True
        self.on_end = on_end
        if self.task is not None:
            self.task.cancel()
        if self.timer is not None:
            self.timer.cancel()
        return self.began > 0


class Executor:
    """Executes up to `steps` bodies at once, up to `threads` of them in threads. Further bodies wait in a queue.

    If it is made with `is_open=False`, all bodies wait until `open`.
    """

    def __init__(self, *, steps: int, threads: int, is_open: bool = True) -> None:
        self._loop = asyncio.get_running_loop()
        # Every body starts from the context variables of the worker's creation, never from those of another body.
        # Without this, the first body to end in a loop iteration would leak its variables: the same callback handles
        # the results of other bodies and starts the steps that follow from them.
        self._context = copy_context()
        self._limit = steps
        self._steps = steps if is_open else 0
        self._threads = Threads(threads, self._loop)
        self._running: set[Body] = set()
        self._queue: deque[Body] = deque()
        self._ended: list[tuple[Body, Any, BaseException | None]] = []
        self._is_report_scheduled = False

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(
        self, call: StepCall, info: StepInfo, report: Report, prepare: Callable[[Body], None] | None = None
    ) -> Body:
        """Execute a step. A plain callback of the loop calls `report` when the step has ended or timed out.

        `prepare` may change the context of the execution.
        """
        body = Body(call, info, report, self._context.copy())
        if prepare is not None:
            prepare(body)
        if len(self._running) < self._steps:
            self._launch(body)
        else:
            self._queue.append(body)
        return body

    def open(self) -> None:
        """Begin to execute bodies, and start those that wait."""
        self._steps = self._limit
        self._start_waiting()

    def call_on_loop(self, callback: Callable[[StepInfo], None], info: StepInfo) -> None:
        """Schedule a callback on the loop. Safe to call from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the report is no longer needed
            self._loop.call_soon_threadsafe(callback, info, context=self._context)

    def close(self) -> None:
        """Abandon all bodies that still run or wait."""
        for body in [*self._running, *self._queue]:
            body.abandon()
        self._threads.close()

    def _launch(self, body: Body) -> None:
        self._running.add(body)
        body.began = perf_counter()
        try:
            if _is_async(body.call.function):
                if body.call.options.timeout is not None:
                    self._set_timer(body)
                self._spawn(body)
            else:
                self._threads.submit(lambda: self._run_in_thread(body))
        except Exception as error:  # noqa: BLE001 - a failed start (no thread available, say) is a failed attempt
            self._queue_outcome(body, None, error)

    def _set_timer(self, body: Body) -> None:
        timeout = body.call.options.timeout
        if timeout is not None and body in self._running:
            body.timer = self._loop.call_later(timeout, self._time_out, body)

    def _run_in_thread(self, body: Body) -> Callable[[], None]:
        if body.is_abandoned:  # while it waited for a free thread
            return lambda: self._end(body, None, None)
        body.began = perf_counter()
        if body.call.options.timeout is not None:
            # The timeout starts here, not when the body began to wait for a thread: waiting is not part of an attempt.
            with contextlib.suppress(RuntimeError):  # the loop is closed: the result is no longer needed
                self._loop.call_soon_threadsafe(self._set_timer, body)
        outcome = body.context.run(attempt, body.call.function, body.call.arguments(body.info))
        return lambda: self._continue(body, *outcome)

    def _continue(self, body: Body, value: Any, error: BaseException | None) -> None:
        """Continue after a function returned a result, or an awaitable that the loop must await."""
        if error is None and not body.is_abandoned and (type(value) is CoroutineType or inspect.isawaitable(value)):
            body.value = value
            self._spawn(body)
        else:
            if type(value) is CoroutineType:
                value.close()  # the body was abandoned meanwhile, so its coroutine never starts
            self._end(body, value, error)

    def _spawn(self, body: Body) -> None:
        coroutine = self._run_body(body)
        # Run it up to its first await (`_begun`). Otherwise a cancellation before the task's first step would never
        # enter the coroutine, and its `except` would not run.
        coroutine.send(None)
        # Not `loop.create_task`: this is the hot path, and bodies need no task name and no task factory.
        body.task = asyncio.Task(coroutine, loop=self._loop, context=body.context)
        if len(self._running) == 1 and not self._is_report_scheduled:
            self._is_report_scheduled = True
            self._loop.call_soon(self._report_alone, context=self._context)

    async def _run_body(self, body: Body) -> None:
        """Run a body as a task and queue the outcome. It calls the function, or awaits what a thread returned."""
        value: Any = None
        error: BaseException | None = None
        try:
            await _begun()
            # The call is inside the `try`, so that an error of the call itself (wrong arguments) is reported, too.
            value = await (body.call.function(*body.call.arguments(body.info)) if body.value is None else body.value)
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError:
            if type(body.value) is CoroutineType:
                body.value.close()  # cancelled before its first step, so it was never awaited
            # An abandoned body ignores this outcome. For others the body cancelled itself, which is an ordinary error.
            error = asyncio.CancelledError("the step's body was cancelled")
        except BaseException as raised:  # includes SystemExit, which would otherwise end the loop
            if self._loop.is_closed():
                raise  # the interpreter discards this coroutine with its task
            error = raised
        body.task = None
        self._queue_outcome(body, value, error)

    def _queue_outcome(self, body: Body, value: Any, error: BaseException | None) -> None:
        """Queue an outcome. One callback handles all outcomes that are queued by then.

        A callback for each would cost more than the rest of a short body. Handling the outcome here is not possible:
        runs are driven from plain callbacks, never from inside a task.
        """
        self._ended.append((body, value, error))
        if not self._is_report_scheduled:
            self._is_report_scheduled = True
            self._loop.call_soon(self._report_outcomes, context=self._context)

    def _report_alone(self) -> None:
        """Handle outcomes now if only one body runs: no other body could share its commit, so waiting gains nothing."""
        if len(self._running) == 1:
            self._report_outcomes()
        else:
            self._loop.call_soon(self._report_outcomes)

    def _report_outcomes(self) -> None:
        self._is_report_scheduled = False
        ended, self._ended = self._ended, []
        for body, value, error in ended:
            try:
                self._end(body, value, error)
            except Exception as trouble:  # noqa: BLE001 - the results that follow belong to other runs
                message = "exception while the worker handled a step's result"
                self._loop.call_exception_handler({"message": message, "exception": trouble})

    def _time_out(self, body: Body) -> None:
        body.timer = None
        if not body.is_abandoned:
            body.is_timed_out = True
            body.abandon()
            body.report(body)

    def _end(self, body: Body, value: Any, error: BaseException | None) -> None:
        self._running.discard(body)
        if body.timer is not None:
            body.timer.cancel()
        if self._queue:
            self._start_waiting()
        if not body.is_abandoned:
            body.value, body.error = value, error
            body.report(body)
        elif body.on_end is not None:
            body.on_end(body)

    def _start_waiting(self) -> None:
        while self._queue and len(self._running) < self._steps:
            waiting = self._queue.popleft()
            if not waiting.is_abandoned:
                self._launch(waiting)


def _is_async(function: Callable[..., Any]) -> bool:
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # the usual case, twenty times faster than `inspect`
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@types.coroutine
def _begun() -> Generator[None, None, None]:
    """Suspend until the task that awaits this makes its first step."""
    yield


IDLE_SECONDS = 10.0

Job = Callable[[], Callable[[], None]]
"""A function that runs in a thread. The function that it returns runs on the loop."""


class Threads:
    """A pool that grows to `limit` threads as needed. Idle threads end by themselves."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._limit = limit
        self._loop = loop
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._finished: deque[Callable[[], None]] = deque()
        self._is_woken = False
        self._count = 0
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, job: Job) -> None:
        """Run a job as soon as a thread is free. The pool has one thread per unfinished job, up to the limit.

        Raises `RuntimeError` if the system cannot start a thread and the pool has none.
        """
        with self._lock:
            self._jobs.put(job)
            self._unfinished += 1
            if self._count >= min(self._unfinished, self._limit):
                return
            self._count += 1
        try:
            threading.Thread(target=self._work, name="holdfast-step", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._count -= 1
                if self._count > 0:
                    return  # the existing threads take the job when they are free
                self._unfinished -= 1
                self._jobs.get_nowait()  # without threads, this job is the only one in the queue
            raise

    def close(self) -> None:
        """End every thread after its current job and the queued jobs."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._count -= 1
                        return
                continue
            if job is None:
                return
            finished = job()
            with self._lock:
                self._unfinished -= 1
            self._return(finished)
            del job, finished  # an idle thread must not keep the objects of the last body alive

    def _return(self, finished: Callable[[], None]) -> None:
        # No result can be left behind: this thread appends before it reads the flag, and the loop clears the flag
        # before it drains the queue.
        self._finished.append(finished)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # The loop is closed: the process is ending. A worker executes the unrecorded steps again later.
                self._finished.clear()

    def _drain(self) -> None:
        self._is_woken = False
        while self._finished:
            finished = self._finished.popleft()
            try:
                finished()
            except Exception as error:  # noqa: BLE001 - the results that follow belong to other runs
                message = "exception while the worker handled a step's result"
                self._loop.call_exception_handler({"message": message, "exception": error})


def attempt(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """Call a body. Return its result, or the exception that it raised."""
    try:
        return function(*args), None
    except BaseException as error:  # noqa: BLE001 - a body may raise anything, and its outcome is data
        return None, error
