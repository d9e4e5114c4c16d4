"""Waiting in tests: for a condition, under one generous guard whose failure says what was waited for.

How long something takes depends on what else the machine does, so no test has a limit of its own. The guard only ends
a hang.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

GUARD_SECONDS = float(os.environ.get("HOLDFAST_GUARD_SECONDS", "240"))
"""Far more than any wait of a test takes, even where other programs use every processor."""

_POLL_SECONDS = 0.005

T = TypeVar("T")


@asynccontextmanager
async def guard(what: str) -> AsyncIterator[None]:
    """Fail if the block, which waits for `what`, does not end before the guard does."""
    limit = asyncio.timeout(GUARD_SECONDS)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise _hang(what) from None
        raise


async def guarded(what: str, awaitable: Awaitable[T]) -> T:
    """The result of something awaitable, under the guard."""
    async with guard(what):
        return await awaitable


async def until(
    what: str, is_so: Callable[[], bool | Awaitable[bool]], *, report: Callable[[str], str] = lambda text: text
) -> None:
    """Wait until a condition holds. `report` adds to the failure whatever else is known."""
    limit = time.monotonic() + GUARD_SECONDS
    while not (answer if isinstance(answer := is_so(), bool) else await answer):
        if time.monotonic() > limit:
            raise AssertionError(report(str(_hang(what))))
        await asyncio.sleep(_POLL_SECONDS)


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """Like `until`, for a test that is not async."""
    limit = time.monotonic() + GUARD_SECONDS
    while not is_so():
        if time.monotonic() > limit:
            raise _hang(what)
        time.sleep(_POLL_SECONDS)


def wait_for(what: str, event: threading.Event | threading.Semaphore) -> None:
    """Wait, in a thread, for another thread."""
    is_there = event.wait(GUARD_SECONDS) if isinstance(event, threading.Event) else event.acquire(timeout=GUARD_SECONDS)
    if not is_there:
        raise _hang(what)


def _hang(what: str) -> AssertionError:
    return AssertionError(f"after {GUARD_SECONDS:g} s still waiting until {what}")
