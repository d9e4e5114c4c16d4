"""Hooks: users' functions that are called for signals. A hook never delays or stops a run.

A hook gets its signals one at a time, in their order: an async hook in its own task, a sync hook in its own thread. An
error of a hook is logged. Signals for a slow hook wait, and are dropped if too many wait.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from holdfast.core.errors import InvalidRequest
from holdfast.core.news import Signal, Signals

PENDING_LIMIT = 1_000
"""Maximum number of signals that wait for one hook. Further signals are dropped."""

CALL_SECONDS = 30.0
"""Time limit for one call of an async hook, which is then cancelled. A sync hook cannot be cancelled."""

_log = logging.getLogger("holdfast.hooks")


class Hook:
    """One function, and the signals that wait for it."""

    def __init__(self, function: Callable[[Signal], Any]) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.dropped = 0
        self.errors = 0
        self._pending: deque[Signal] = deque()
        self._is_busy = False
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return not self._is_busy

    def __call__(self, signal: Signal) -> None:
        """Queue a signal for the function."""
        if len(self._pending) >= PENDING_LIMIT:
            if self.dropped % PENDING_LIMIT == 0:
                _log.warning(
                    "hook %s is too slow: %d signals wait for it, and further signals are dropped; make it faster",
                    self.name,
                    PENDING_LIMIT,
                )
            self.dropped += 1
            return
        self._pending.append(signal)
        self._work()

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` until the function has handled all signals, then drop the rest."""
        raise NotImplementedError

    def _work(self) -> None:
        """Start a task or thread that calls the function, unless one runs already."""
        raise NotImplementedError

    def _next(self) -> Signal | None:
        """Return the next signal. If there is none, mark the hook as idle and return None."""
        with self._lock:
            if not self._pending:
                self._is_busy = False
                return None
            return self._pending.popleft()

    def _failed(self, signal: Signal, error: BaseException) -> None:
        self.errors += 1
        # Log only the class of the error: its text may contain data of the run.
        kind = type(error).__name__
        about = {"run_id": signal.run_id, "type": signal.type, "location": signal.location, "error": kind}
        _log.error("hook %s failed on %s: %s", self.name, signal.name, kind, extra=about)
        _log.debug("hook %s failed on %s", self.name, signal.name, exc_info=error, extra=about)


class AsyncHook(Hook):
    """An async hook, which is awaited in a task."""

    def __init__(self, function: Callable[[Signal], Any]) -> None:
        super().__init__(function)
        self._task: asyncio.Task[None] | None = None

    def _work(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            # A task on the loop of another thread goes on, which keeps one signal at a time, in their order.
            task = self._task
            if self._is_busy and task is not None and not task.done() and task.get_loop().is_running():
                return
            self._is_busy = True
            # In an empty context: the signal may come from the context of a step's body, which the hook must not see.
            self._task = loop.create_task(self._call_on(), context=Context())

    async def _call_on(self) -> None:
        try:
            while (signal := self._next()) is not None:
                try:
                    async with asyncio.timeout(CALL_SECONDS):
                        await self.function(signal)
                except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                    self._failed(signal, error)
        except BaseException:
            self._is_busy = False  # cancelled, because its loop ends
            raise

    async def drain(self, seconds: float) -> None:
        task = self._task
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            return
        await asyncio.wait([task], timeout=seconds)
        self._pending.clear()
        task.cancel()
        await asyncio.wait([task], timeout=seconds)


class ThreadHook(Hook):
    """A sync hook, which runs in a thread. The thread is a daemon, so that a hanging hook does not block exit."""

    def __init__(self, function: Callable[[Signal], Any]) -> None:
        super().__init__(function)
        self._thread: threading.Thread | None = None

    def _work(self) -> None:
        with self._lock:
            if self._is_busy:
                return
            self._is_busy = True
        self._thread = threading.Thread(target=self._call_on, name="holdfast-hook", daemon=True)
        self._thread.start()

    def _call_on(self) -> None:
        while (signal := self._next()) is not None:
            try:
                _check_answer(self.function(signal))
            except BaseException as error:  # noqa: BLE001 - a user's function may raise anything
                self._failed(signal, error)

    async def drain(self, seconds: float) -> None:
        thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join, seconds)
            self._pending.clear()


class Hooks:
    """All hooks of one Holdfast."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._hooks: list[Hook] = []

    def add(self, patterns: tuple[str, ...], function: Callable[[Signal], Any]) -> None:
        """Call a function for every signal that matches one of the patterns."""
        if not callable(function):
            raise InvalidRequest(f"expected a function that takes a Signal, not {function!r}")
        hook = (AsyncHook if _is_async(function) else ThreadHook)(function)
        self._signals.tap(hook, *patterns)
        self._hooks.append(hook)

    @property
    def is_idle(self) -> bool:
        """True if every hook has handled all its signals."""
        return all(hook.is_idle for hook in self._hooks)

    @property
    def dropped(self) -> int:
        """Number of signals dropped because a hook was too slow."""
        return sum(hook.dropped for hook in self._hooks)

    @property
    def errors(self) -> int:
        """Number of hook calls that failed."""
        return sum(hook.errors for hook in self._hooks)

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` until every hook has handled all its signals, then drop the rest."""
        until = time.monotonic() + seconds
        for hook in self._hooks:
            await hook.drain(max(0.01, until - time.monotonic()))


def _check_answer(answer: object) -> None:
    if inspect.iscoroutine(answer):
        answer.close()
        raise InvalidRequest("the hook returned a coroutine; declare it with async def")


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
