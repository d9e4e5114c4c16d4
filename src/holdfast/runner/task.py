"""The tasks and futures of a run, and functions that recognise those which asyncio creates for itself.

They hash by creation number. `TaskGroup`, `asyncio.wait` and `as_completed` keep them in sets, and a set of objects
that hash by address iterates in another order on every replay.

While a run leaves memory, an await of one of them never returns and never raises, even if it is settled. Otherwise code
that swallows every exception and awaits again would occupy the worker forever.
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
    """A task of a run. It counts the names of its operations in its own `scope`."""

    __slots__ = ("run_context", "scope", "serial")
    _loop: RunLoop
    serial: int
    scope: Scope
    run_context: Context  # tasks of Python 3.11 do not expose their context

    def __hash__(self) -> int:
        return self.serial

    def __await__(self) -> Generator[Any, None, Any]:
        return _unsettled(self) if self._loop.is_evicting else super().__await__()

    __iter__ = __await__


class RunGather(GatheringFuture):  # type: ignore[misc]  # a private class, so mypy does not know it
    """The future that `asyncio.gather` returns inside a run. `RunLoop.get_debug` creates it."""

    serial: int

    def __hash__(self) -> int:
        return self.serial

    def __await__(self) -> Generator[Any, None, Any]:
        return _unsettled(self) if self._loop.is_evicting else super().__await__()

    __iter__ = __await__


def _unsettled(future: asyncio.Future[Any]) -> Generator[Any, None, Any]:
    """Return an await that never ends, in place of an await of `future`."""
    return asyncio.Future(loop=future.get_loop()).__await__()


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
