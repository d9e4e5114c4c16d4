"""Blocking facades: call the methods of an asynchronous object on a private event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.engine.lists import AsyncList
from holdfast.engine.session import INSTEAD, opened_elsewhere
from holdfast.runner.asyncio_private import get_running_loop_or_none
from holdfast.runner.loop import RunLoop

AWAKE_SECONDS = 0.5
"""Maximum time that a waiting thread sleeps at once, so that it notices an interrupt."""

T = TypeVar("T")


class PrivateLoop:
    """A loop for any number of threads at once. It can be ended and used again afterwards.

    `end` awaits `on_end` on the loop, to close what was opened there.
    """

    def __init__(self, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_end = on_end
        self._lock = threading.Lock()
        self._life: _Life | None = None

    def check(self, call: str, instead: str = "") -> None:
        """Refuse a call such as `hf.start` on a running event loop, and in a fork of the process that opened this loop.

        `instead` is the call that code on an event loop uses in its place.
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
                f"without its .sync: {instead or f'`await {call}(…)`, or `async for` for a list'}"
            )

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, wait for it, and return its result.

        An interrupt while the thread waits, such as Ctrl-C, cancels the coroutine. The method raises after its end.
        """
        call = _Call(coroutine)
        life: _Life | None = None
        try:
            with self._lock:  # so that no call is scheduled after `end` has stopped the loop
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
                "hf.sync was closed before this call had an answer; the call may have been done all the same"
            ) from None

    def end(self) -> None:
        """Cancel all calls, await `on_end`, and end the thread."""
        life = self._life
        if life is not None and life.pid != os.getpid():
            return  # the loop belongs to the parent process
        self.check("hf.close")
        with self._lock:  # held until the end, so that no new loop opens what this one is still closing
            life, self._life = self._life, None
            if life is not None:
                life.end()


class _Call(Generic[T]):
    """A coroutine that a thread waits for. All methods except `wait` and `outcome` run on the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._is_over = False
        # A plain lock instead of an event or a future: an interrupt inside those leaves them locked, and then the loop
        # would wait forever to report that the call is over.
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
        else:  # the thread was interrupted before it scheduled `begin`
            self._coroutine.close()
            self._open()

    def wait(self) -> None:
        """Block until the coroutine has ended."""
        while not self._is_over:
            # A signal that comes just before the thread falls asleep is handled only after it wakes up.
            self._gate.acquire(timeout=AWAKE_SECONDS)

    def outcome(self) -> T:
        """Return the result of the coroutine, or raise its error."""
        assert self._task is not None, "called before the coroutine has ended"
        return self._task.result()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, because an interrupted thread does not ask for it
        self._open()

    def _open(self) -> None:
        self._is_over = True
        self._gate.release()


class _Life:
    """A thread with its loop, from start to end. `calls` are the running calls."""

    def __init__(self, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.pid = os.getpid()
        self._on_end = on_end
        self.calls: set[asyncio.Task[Any]] = set()
        self._is_ending = asyncio.Event()
        self._error: BaseException | None = None
        # With a factory, because otherwise the loop would also become the loop of the calling thread.
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
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            self._error = error

    async def _until_ended(self) -> None:
        await self._is_ending.wait()
        # Cancel the calls first: they would open again what `on_end` closes.
        if calls := set(self.calls):
            for task in calls:
                task.cancel()
            await asyncio.wait(calls)
        await self._on_end()


PAGE = 100
"""Number of items of a list that are fetched at once."""

P = ParamSpec("P")


class Facade:
    """A blocking version of `target`, which runs on `loop`. Error messages call it `word`."""

    def __init__(self, word: str, target: Any, loop: PrivateLoop) -> None:
        self._word = word
        self._target = target
        self._loop = loop

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method `name` of the target and return its result."""
        self._loop.check(f"{self._word}.{name}")
        return self._loop.run(getattr(self._target, name)(*args, **kwargs))

    def _each(self, name: str, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Call the method `name` of the target and iterate over its items."""
        self._loop.check(f"{self._word}.{name}")
        source = getattr(self._target, name)(*args, **kwargs)

        def each() -> Iterator[Any]:
            while page := self._loop.run(_page(source)):
                yield from page

        return each()


async def _page(source: AsyncIterator[T]) -> list[T]:
    page: list[T] = []
    async for one in source:
        page.append(one)
        if len(page) == PAGE:
            break
    return page


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a facade from a coroutine method of its target."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self._call(method.__name__, *args, **kwargs)
        return answer

    return call


def iterating(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Make a method of a facade that returns an iterator, from a method that returns an async iterator."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._each(method.__name__, *args, **kwargs)

    return call


def listing(method: Callable[Concatenate[Any, P], AsyncList[T]]) -> Callable[Concatenate[Any, P], list[T]]:
    """Make a method of a facade that returns a list, from a method that returns a short `AsyncList`."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return list(self._each(method.__name__, *args, **kwargs))

    return call
