"""The tasks and futures of a run, and how those that asyncio makes on its own account are told apart.

They hash by creation number. `TaskGroup`, `asyncio.wait` and `as_completed` keep them in sets, and a
set of objects that hash by address iterates differently on every replay.

In a run that leaves memory, an await of one of them never returns and never raises, even of one that is settled: code
that swallows every exception and awaits again would never give the worker back.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Coroutine, Generator
from contextvars import Context
from types import FrameType
from typing import TYPE_CHECKING, Any
from zlib import crc32

from holdfast.core.location import Scope
from holdfast.runner.asyncio_private import ENSURE_FUTURE, ENSURE_FUTURE_INNER, GatheringFuture

if TYPE_CHECKING:
    from holdfast.runner.loop import RunLoop


class RunFuture(asyncio.Future[Any]):
    """A future of a run."""

    __slots__ = ("serial",)
    _loop: RunLoop
    serial: int

    def __hash__(self) -> int:
        return self.serial

    def __await__(self) -> Generator[Any, None, Any]:
        return _unsettled(self) if self._loop.is_evicting else super().__await__()

    __iter__ = __await__


class RunTask(asyncio.Task[Any]):
    """A task of a run; it counts the names of its operations in its own `scope`."""

    __slots__ = ("run_context", "scope", "serial")
    _loop: RunLoop
    serial: int
    scope: Scope
    run_context: Context  # tasks of Python 3.11 do not tell theirs

    def __hash__(self) -> int:
        return self.serial

    def __await__(self) -> Generator[Any, None, Any]:
        return _unsettled(self) if self._loop.is_evicting else super().__await__()

    __iter__ = __await__


class RunGather(GatheringFuture):  # type: ignore[misc]  # private, hence not declared
    """What `asyncio.gather` returns inside a run; see `RunLoop.get_debug`."""

    serial: int

    def __hash__(self) -> int:
        return self.serial

    def __await__(self) -> Generator[Any, None, Any]:
        return _unsettled(self) if self._loop.is_evicting else super().__await__()

    __iter__ = __await__


def _unsettled(future: asyncio.Future[Any]) -> Generator[Any, None, Any]:
    """The await of something that nobody will settle, instead of an await of `future`."""
    return asyncio.Future(loop=future.get_loop()).__await__()


def first_serial(run_id: str) -> int:
    """Where the serial numbers of a run begin.

    Runs differ, because asyncio (up to 3.13) and libraries keep the tasks of all runs in global tables,
    which become quadratic with equal hashes. They differ in bits so high that the order of a set,
    which follows the low ones, is that of the numbers alone: so a fork, which replays the history of
    another run, meets its sets as that run did. Where hashes have 32 bits there is no room for that,
    and the order matters more.
    """
    return (crc32(run_id.encode()) & 0xFFFFF) << 40 if sys.maxsize > 2**32 else 0


def asker_of(frame: FrameType) -> FrameType:
    """The frame that wants a task: the caller of `ensure_future` if `frame` is of that, else `frame` itself."""
    while True:
        code = frame.f_code
        if code is not ENSURE_FUTURE_INNER and code is not ENSURE_FUTURE and code.co_name != "<setcomp>":
            return frame
        assert frame.f_back is not None, "a drive is below"
        frame = frame.f_back


def as_coroutine(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    """Something that can be awaited, as a coroutine, which a task needs."""
    if asyncio.iscoroutine(awaitable):
        return awaitable

    async def wait() -> Any:
        return await awaitable

    return wait()
