"""A deterministic event loop: virtual time, no threads, and processes that can be frozen and killed.

A callback that another callback schedules belongs to the same process. A killed process does nothing more: it does not
even clean up. A frozen process continues later where it stopped, with its timers overdue. Time passes only when no
callback is ready, and then jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from holdfast.runner.asyncio_private import RoundLoop, run_handle


class Process:
    """A process of the simulated world."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_frozen = False
        self.held_back: list[_Soon | _Timer] = []
        self.on_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name


class _Soon(asyncio.Handle):
    __slots__ = ("process",)
    process: Process | None


class _Timer(asyncio.TimerHandle):
    __slots__ = ("process",)
    process: Process | None


class EndlessWork(Exception):
    """The simulation used up its limit of callbacks, or nothing is left that could happen."""


class SimulatedLoop(RoundLoop):
    """Runs callbacks in the order in which they were scheduled, each as its process."""

    def __init__(
        self,
        *,
        pause: Callable[[], float],
        on_error: Callable[[dict[str, Any]], None],
        callback_limit: int,
    ) -> None:
        super().__init__()
        self.process: Process | None = None
        """The process whose code is running. None means the world itself, including the store."""
        self._pause = pause
        self._seconds = 0.0
        self._soon: deque[_Soon | _Timer] = deque()
        self._later: list[tuple[float, int, _Timer]] = []
        self._count = 0
        self._callback_limit = self._callbacks_left = callback_limit
        self._tasks: set[asyncio.Task[Any]] = set()
        self.set_exception_handler(lambda _, context: on_error(context))

    def time(self) -> float:
        return self._seconds

    # Scheduling

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> _Soon:  # type: ignore[override]
        handle = _Soon(callback, args, self, context)
        handle.process = self.process
        self._soon.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Timer:
        return self.call_at(self._seconds + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Timer:
        handle = _Timer(when, callback, args, self, context)
        handle.process = self.process
        self._count += 1
        heapq.heappush(self._later, (when, self._count, handle))
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Pause, call the function, and pause again, because the simulation has no threads."""
        answer = self.create_future()
        self.call_later(self._pause(), self._execute, answer, func, args)
        return answer

    def _execute(self, answer: asyncio.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            value = function(*args)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self.call_later(self._pause(), settle, answer, None, error)
        else:
            self.call_later(self._pause(), settle, answer, value, None)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        # Keep the tasks of a killed process: collecting them as garbage would run their `finally` blocks.
        task = super().create_task(coro, **options)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Processes

    def in_name_of(self, process: Process | None, delay: float, callback: Callable[..., Any], *args: Any) -> None:
        """Schedule a callback that belongs to the given process."""
        running, self.process = self.process, process
        try:
            self.call_later(delay, callback, *args)
        finally:
            self.process = running

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task in a process."""
        running, self.process = self.process, process
        try:
            return self.create_task(work)
        finally:
            self.process = running

    def freeze(self, process: Process) -> None:
        """Freeze a process: hold its callbacks back."""
        process.is_frozen = True

    def thaw(self, process: Process) -> None:
        """Let a frozen process continue with the callbacks that were held back."""
        process.is_frozen = False
        self._soon.extend(process.held_back)
        process.held_back.clear()

    def kill(self, process: Process) -> None:
        """Kill a process: none of its callbacks runs again."""
        process.is_alive = False
        for told in process.on_death:
            self.in_name_of(None, 0, told)
        process.on_death.clear()

    # Running

    def forgive(self) -> None:
        """Reset the count of callbacks to the limit."""
        self._callbacks_left = self._callback_limit

    def run_round(self) -> None:
        """Run all callbacks that are ready. If none is, first jump to the next timer."""
        if not self._soon:
            self._seconds = max(self._seconds, self._next_due())
        while self._later and self._later[0][0] <= self._seconds:
            self._soon.append(heapq.heappop(self._later)[2])
        self._callbacks_left -= len(self._soon)
        if self._callbacks_left < 0:
            raise EndlessWork(
                f"after {self._callback_limit:,} callbacks and {self._seconds:.0f} virtual seconds "
                "the simulation has not ended"
            )
        for _ in range(len(self._soon)):
            handle = self._soon.popleft()
            process = handle.process
            if handle.cancelled():
                continue
            if process is not None and (process.is_frozen or not process.is_alive):
                process.held_back.append(handle)
                continue
            self.process = process
            run_handle(handle)
            self.process = None

    def _next_due(self) -> float:
        while self._later:
            when, _, handle = self._later[0]
            if not handle.cancelled() and (handle.process is None or handle.process.is_alive):
                return when
            heapq.heappop(self._later)
        raise EndlessWork("every task waits, and no timer is left to wake one")


def settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Resolve a future with a value or an error, unless it is done already."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
