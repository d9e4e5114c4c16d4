"""Hooks: functions of users that are called for signals, beside the work and never in its way.

A hook gets its signals one at a time, in the order they were given: an async one in a task of its own, a sync one in a
thread of its own. One that raises is logged; one that is slow has its signals wait, and if too many do, drops them.
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
from holdfast.core.signals import Signal, Signals

PENDING_LIMIT = 1_000
"""So many signals may wait for one hook; further ones are dropped."""

CALL_SECONDS = 30.0
"""An async hook is cancelled after this time; a sync one cannot be."""

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
        """Have the function called soon."""
        if len(self._pending) >= PENDING_LIMIT:
            if self.dropped % PENDING_LIMIT == 0:
                _log.warning(
                    "hook %s is too slow: %d signals wait for it, and more are dropped", self.name, PENDING_LIMIT
                )
            self.dropped += 1
            return
        self._pending.append(signal)
        self._work()

    async def drain(self, seconds: float) -> None:
        """Wait until it has had all its signals, but no longer than this; then drop those that are left."""
        raise NotImplementedError

    def _work(self) -> None:
        """See to it that somebody calls the function."""
        raise NotImplementedError

    def _next(self) -> Signal | None:
        """The next signal to call the function for; None if there is none, and then nobody is at it any more."""
        with self._lock:
            if not self._pending:
                self._is_busy = False
                return None
            return self._pending.popleft()

    def _failed(self, signal: Signal, error: BaseException) -> None:
        self.errors += 1
        # Of the hook's own error, too, only the class: its text may be made of what the signal is about.
        kind = type(error).__name__
        about = {"run_id": signal.run_id, "type": signal.type, "location": signal.location, "error": kind}
        _log.error("hook %s failed on %s: %s", self.name, signal.name, kind, extra=about)
        _log.debug("hook %s failed on %s", self.name, signal.name, exc_info=error, extra=about)


class AsyncHook(Hook):
    """A hook that is awaited."""

    def __init__(self, function: Callable[[Signal], Any]) -> None:
        super().__init__(function)
        self._task: asyncio.Task[None] | None = None

    def _work(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            # One that works on another loop, of another thread, goes on: one signal at a time, in their order.
            task = self._task
            if self._is_busy and task is not None and not task.done() and task.get_loop().is_running():
                return
            self._is_busy = True
            # In an empty context: a signal may be given in that of a step's body, which is none of the hook's business.
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
            self._is_busy = False  # cancelled, as its loop ends
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
    """A hook that blocks. Its thread is a daemon: one that hangs must not keep the process from ending."""

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
        """Have a function called for signals."""
        if not callable(function):
            raise InvalidRequest(f"a hook is a function that takes a Signal, not {function!r}")
        hook = (AsyncHook if _is_async(function) else ThreadHook)(function)
        self._signals.tap(hook, *patterns)
        self._hooks.append(hook)

    @property
    def is_idle(self) -> bool:
        """Whether every hook has had all its signals."""
        return all(hook.is_idle for hook in self._hooks)

    @property
    def dropped(self) -> int:
        """How many signals were not told to a hook because it was too slow."""
        return sum(hook.dropped for hook in self._hooks)

    @property
    def errors(self) -> int:
        """How many calls of hooks failed."""
        return sum(hook.errors for hook in self._hooks)

    async def drain(self, seconds: float) -> None:
        """Wait until every hook has had all its signals, but no longer than this."""
        until = time.monotonic() + seconds
        for hook in self._hooks:
            await hook.drain(max(0.01, until - time.monotonic()))


def _check_answer(answer: object) -> None:
    if inspect.iscoroutine(answer):
        answer.close()
        raise InvalidRequest("a hook that returns something to await is to be declared async")


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
