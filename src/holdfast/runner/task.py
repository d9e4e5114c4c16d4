"""The tasks and futures of a run, and how those that asyncio makes on its own account are told apart.

They hash by creation number. `TaskGroup`, `asyncio.wait` and `as_completed` keep them in sets, and a
set of objects that hash by address iterates differently on every replay.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import tasks
from asyncio.tasks import _GatheringFuture  # type: ignore[attr-defined]  # private, hence not declared
from collections.abc import Awaitable, Coroutine
from contextvars import Context
from types import CodeType, FrameType
from typing import Any
from zlib import crc32

from holdfast.core.location import Scope


class RunFuture(asyncio.Future[Any]):
    """A future of a run."""

    __slots__ = ("serial",)
    serial: int

    def __hash__(self) -> int:
        return self.serial


class RunTask(asyncio.Task[Any]):
    """A task of a run; it counts the names of its operations in its own `scope`."""

    __slots__ = ("run_context", "scope", "serial")
    serial: int
    scope: Scope
    run_context: Context  # tasks of Python 3.11 do not tell theirs

    def __hash__(self) -> int:
        return self.serial


class RunGather(_GatheringFuture):  # type: ignore[misc]
    """What `asyncio.gather` returns inside a run; see `RunLoop.get_debug`."""

    serial: int

    def __hash__(self) -> int:
        return self.serial


def first_serial(run_id: str) -> int:
    """Where the serial numbers of a run begin.

    Runs differ, because asyncio (up to 3.13) and libraries keep the tasks of all runs in global tables,
    which become quadratic with equal hashes. They differ in bits so high that the order of a set,
    which follows the low ones, is that of the numbers alone: so a fork, which replays the history of
    another run, meets its sets as that run did. Where hashes have 32 bits there is no room for that,
    and the order matters more.
    """
    return (crc32(run_id.encode()) & 0xFFFFF) << 40 if sys.maxsize > 2**32 else 0


WAIT_FOR: CodeType = tasks.wait_for.__code__
AS_COMPLETED: CodeType = (
    tasks._AsCompletedIterator.__init__  # noqa: SLF001 - from 3.13 on it is a class
    if hasattr(tasks, "_AsCompletedIterator")
    else tasks.as_completed
).__code__
GATHER_INIT: CodeType = _GatheringFuture.__init__.__code__

_ENSURE_FUTURE: CodeType = tasks.ensure_future.__code__
_ENSURE_FUTURE_INNER: CodeType = getattr(tasks, "_ensure_future", tasks.ensure_future).__code__  # up to 3.11


def asker_of(frame: FrameType) -> FrameType:
    """The frame that wants a task: the caller of `ensure_future` if `frame` is of that, else `frame` itself."""
    while True:
        code = frame.f_code
        if code is not _ENSURE_FUTURE_INNER and code is not _ENSURE_FUTURE and code.co_name != "<setcomp>":
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
