"""The executor: runs step bodies, async ones on the worker's loop, sync ones in threads.

It knows nothing of runs. A body that nobody waits for any more is abandoned: cancelled if it can be,
and whatever it still does is not reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import types
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from time import perf_counter
from types import CoroutineType, FunctionType
from typing import Any

from holdfast.runner.operation import StepCall
from holdfast.runner.step_info import StepInfo, current_step
from holdfast.worker.threads import Threads, attempt

Report = Callable[["Body"], None]


class Body:
    """One attempt at a step, being executed. `is_timed_out`, `error` and `value` tell how it went."""

    __slots__ = ("began", "call", "context", "error", "info", "is_timed_out", "report", "task", "timer", "value")

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

    @property
    def is_abandoned(self) -> bool:
        return self.info.is_cancelled

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self.info.is_cancelled = True
        if self.task is not None:
            self.task.cancel()
        if self.timer is not None:
            self.timer.cancel()


class Executor:
    """Executes up to `steps` bodies at once, up to `threads` of them in threads; more of them wait their turn."""

    def __init__(self, *, steps: int, threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        # Every body begins with the variables the worker was made with, and none hands its own on: whoever ends first
        # in a round would give them to all whose results are taken in with its, and to what these lead to.
        self._context = copy_context()
        self._steps = steps
        self._threads = Threads(threads, self._loop)
        self._running: set[Body] = set()
        self._queue: deque[Body] = deque()
        self._ended: list[tuple[Body, Any, BaseException | None]] = []
        self._is_to_take_in = False

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(
        self, call: StepCall, info: StepInfo, report: Report, prepare: Callable[[Body], None] | None = None
    ) -> Body:
        """Execute a step; `report` is called, from a plain callback of the loop, when it has ended or timed out.

        `prepare` may change the context it is to be executed in.
        """
        body = Body(call, info, report, self._context.copy())
        if prepare is not None:
            prepare(body)
        if len(self._running) < self._steps:
            self._launch(body)
        else:
            self._queue.append(body)
        return body

    def hand_over(self, callback: Callable[[StepInfo], None], info: StepInfo) -> None:
        """Call back on the loop; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody listens any more
            self._loop.call_soon_threadsafe(callback, info, context=self._context)

    def close(self) -> None:
        """Abandon what still runs."""
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
        except Exception as error:  # noqa: BLE001 - no thread could be started, say: that is an attempt that failed
            self._hand_in(body, None, error)

    def _set_timer(self, body: Body) -> None:
        timeout = body.call.options.timeout
        if timeout is not None and body in self._running:
            body.timer = self._loop.call_later(timeout, self._time_out, body)

    def _run_in_thread(self, body: Body) -> Callable[[], None]:
        if body.is_abandoned:  # while it waited for a free thread
            return lambda: self._end(body, None, None)
        body.began = perf_counter()
        if body.call.options.timeout is not None:
            # From here on, not from when it began to wait: an attempt that was not made has not taken too long.
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._set_timer, body)
        outcome = body.context.run(attempt, body.call.function, body.call.arguments(body.info))
        return lambda: self._go_on(body, *outcome)

    def _go_on(self, body: Body, value: Any, error: BaseException | None) -> None:
        """A function returned: with a result, or with something still to be awaited."""
        if error is None and not body.is_abandoned and (type(value) is CoroutineType or inspect.isawaitable(value)):
            body.value = value
            self._spawn(body)
        else:
            if type(value) is CoroutineType:
                value.close()  # abandoned meanwhile: it is not begun
            self._end(body, value, error)

    def _spawn(self, body: Body) -> None:
        coroutine = self._see_through(body)
        coroutine.send(None)  # up to its first await: what cancels the task before its first step arrives in there, too
        # Not `loop.create_task`: this is the hot path, and bodies need no name and no factory.
        body.task = asyncio.Task(coroutine, loop=self._loop, context=body.context)
        if len(self._running) == 1 and not self._is_to_take_in:
            self._is_to_take_in = True
            self._loop.call_soon(self._take_in_alone, context=self._context)

    async def _see_through(self, body: Body) -> None:
        """The task of a body: call its function, or await what a call in a thread returned, and hand in the outcome."""
        value: Any = None
        error: BaseException | None = None
        try:
            await _begun()
            # Called in here, not before: what the call itself raises (wrong arguments) is reported like all else.
            value = await (body.call.function(*body.call.arguments(body.info)) if body.value is None else body.value)
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError:
            if type(body.value) is CoroutineType:
                body.value.close()  # cancelled before its first step, it was never awaited
            # Not by us (then nobody listens): the body's own cancellation is its error like any other.
            error = asyncio.CancelledError("the step's body was cancelled")
        except BaseException as raised:  # also SystemExit, with which a task would end its loop
            if self._loop.is_closed():
                raise  # this coroutine is thrown away with its task
            error = raised
        body.task = None
        self._hand_in(body, value, error)

    def _hand_in(self, body: Body, value: Any, error: BaseException | None) -> None:
        """Have an outcome taken in with all others that are there by then.

        Not one callback for each, which would cost more than all the rest of a short body; and not from here, as runs
        are driven from plain callbacks, never from inside a task.
        """
        self._ended.append((body, value, error))
        if not self._is_to_take_in:
            self._is_to_take_in = True
            self._loop.call_soon(self._take_in, context=self._context)

    def _take_in_alone(self) -> None:
        """If no other body is under way, and so none shares its commit, one that ended at once is not kept waiting."""
        if len(self._running) == 1:
            self._take_in()
        else:
            self._loop.call_soon(self._take_in)

    def _take_in(self) -> None:
        self._is_to_take_in = False
        ended, self._ended = self._ended, []
        for body, value, error in ended:
            try:
                self._end(body, value, error)
            except Exception as trouble:  # noqa: BLE001 - the results behind it are those of other runs
                message = "exception while a step's result was taken in"
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
        while self._queue and len(self._running) < self._steps:
            waiting = self._queue.popleft()
            if not waiting.is_abandoned:
                self._launch(waiting)
        if not body.is_abandoned:
            body.value, body.error = value, error
            body.report(body)


def _is_async(function: Callable[..., Any]) -> bool:
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # the usual case, twenty times faster than to ask `inspect`
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@types.coroutine
def _begun() -> Generator[None, None, None]:
    """Comes back when the task it is awaited in makes its first step."""
    yield
