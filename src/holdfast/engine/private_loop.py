"""A private loop: an event loop in a thread of its own, on which threads that block have coroutines run for them.

It knows nothing of runs or stores. The thread begins at the first call and is a daemon, so it
keeps no process from ending.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.engine.session import INSTEAD, opened_elsewhere
from holdfast.runner.asyncio_private import get_running_loop_or_none
from holdfast.runner.loop import RunLoop

AWAKE_SECONDS = 0.5
"""So long a thread sleeps at most while it waits: it may have been interrupted."""

T = TypeVar("T")


class PrivateLoop:
    """A loop for any number of threads at once. It may be ended, and used again afterwards.

    `on_end` is awaited on the loop when it is ended, to let go of what was opened there.
    """

    def __init__(self, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_end = on_end
        self._lock = threading.Lock()
        self._life: _Life | None = None

    def check(self, call: str, instead: str = "") -> None:
        """Refuse a call, such as `hf.start`, where it must not block, and in a fork of the process that opened this.

        `instead` is what code that runs on an event loop uses in its place.
        """
        life = self._life
        if life is not None and life.pid != os.getpid():
            raise opened_elsewhere("hf.sync", life.pid)
        running = get_running_loop_or_none()
        if isinstance(running, RunLoop):
            raise running.refuse(f"the blocking {call}()", INSTEAD.get(call.rpartition(".")[2], ""))
        if running is not None:
            raise InvalidRequest(
                f"the blocking {call}() would stop the event loop that runs in this thread; there, use a Holdfast "
                f"without its .sync: {instead or f'`await {call}(…)`, or `async for` where it gives many'}"
            )

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have a coroutine run, and wait for its outcome.

        Whoever is interrupted while he waits, by Ctrl-C for one, has it cancelled; when he goes on, it is over.
        """
        call = _Call(coroutine)
        life: _Life | None = None
        try:
            with self._lock:  # so that a loop that is ended has all calls before it hears of its end
                if self._life is None or not self._life.thread.is_alive():
                    self._life = _Life(self._on_end)
                life = self._life
                life.loop.call_soon_threadsafe(call.begin, life.calls)
            call.wait()
        except BaseException:
            if life is None:
                coroutine.close()
                raise
            with suppress(RuntimeError):  # the loop has ended, and all calls with it
                life.loop.call_soon_threadsafe(call.cancel)
                call.wait()
            raise
        try:
            return call.outcome()
        except asyncio.CancelledError:
            raise StoreUnavailable(
                "hf.sync was closed before this had an answer; it may have been done all the same"
            ) from None

    def end(self) -> None:
        """Cancel what still runs, let go of what was opened, and end the thread."""
        life = self._life
        if life is not None and life.pid != os.getpid():
            return  # it is the parent's
        self.check("hf.close")
        with self._lock:  # all along: what this lets go of must not be opened on another loop before
            life, self._life = self._life, None
            if life is not None:
                life.end()


class _Call(Generic[T]):
    """A coroutine that a thread waits for. All but `wait` and `outcome` happens on the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._is_over = False
        # A plain lock, and no event or future: an interrupt inside of theirs leaves them locked, and then the loop
        # would wait for ever to tell that the call is over.
        self._gate = threading.Lock()
        self._gate.acquire()

    def begin(self, calls: set[asyncio.Task[Any]]) -> None:
        self._task = asyncio.create_task(self._coroutine)
        calls.add(self._task)
        self._task.add_done_callback(calls.discard)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # whoever wanted it was interrupted before he had said so
            self._coroutine.close()
            self._open()

    def wait(self) -> None:
        """Block until it is over."""
        while not self._is_over:
            # Python misses a signal that comes just before it falls asleep, until it wakes up.
            self._gate.acquire(timeout=AWAKE_SECONDS)

    def outcome(self) -> T:
        """What it returned, or raises what it raised."""
        assert self._task is not None, "it is over"
        return self._task.result()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # whoever was interrupted does not ask for it
        self._open()

    def _open(self) -> None:
        self._is_over = True
        self._gate.release()


class _Life:
    """A thread with its loop, from beginning to end. `calls` are those under way."""

    def __init__(self, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.pid = os.getpid()
        self._on_end = on_end
        self.calls: set[asyncio.Task[Any]] = set()
        self._is_ending = asyncio.Event()
        self._error: BaseException | None = None
        # With a factory, as otherwise the loop would become that of the calling thread, too.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self.thread = threading.Thread(target=self._live, name="holdfast-sync", daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._is_ending.set)
        self.thread.join()
        if self._error is not None:
            raise self._error

    def _live(self) -> None:
        try:
            with self._runner:
                self._runner.run(self._until_ended())
        except BaseException as error:  # noqa: BLE001 - it is raised where the loop is ended
            self._error = error

    async def _until_ended(self) -> None:
        await self._is_ending.wait()
        # First those who use what is let go of then: they would open it again.
        if calls := set(self.calls):
            for task in calls:
                task.cancel()
            await asyncio.wait(calls)
        await self._on_end()
