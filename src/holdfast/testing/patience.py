"""Waiting in tests: for a condition, under one generous time limit whose failure names the condition.

Durations depend on the load of the machine, so no test has a time limit of its own. The guard exists only to end a
hang.
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
"""Time limit of every wait: far more than any wait takes, even when other programs use every processor."""

_POLL_SECONDS = 0.005

T = TypeVar("T")


@asynccontextmanager
async def guard(what: str) -> AsyncIterator[None]:
    """Raise an AssertionError that names `what` if the block takes longer than the guard."""
    limit = asyncio.timeout(GUARD_SECONDS)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise _hang(what) from None
        raise


async def guarded(what: str, awaitable: Awaitable[T]) -> T:
    """Await something under the guard and return its result."""
    async with guard(what):
        return await awaitable


async def until(
    what: str, is_so: Callable[[], bool | Awaitable[bool]], *, report: Callable[[str], str] = lambda text: text
) -> None:
    """Wait until a condition holds. `report` can add details to the failure message."""
    limit = time.monotonic() + GUARD_SECONDS
    while not (answer if isinstance(answer := is_so(), bool) else await answer):
        if time.monotonic() > limit:
            raise AssertionError(report(str(_hang(what))))
        await asyncio.sleep(_POLL_SECONDS)


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, in a test that is not async."""
    limit = time.monotonic() + GUARD_SECONDS
    while not is_so():
        if time.monotonic() > limit:
            raise _hang(what)
        time.sleep(_POLL_SECONDS)


def wait_for(what: str, event: threading.Event | threading.Semaphore) -> None:
    """Block this thread until another thread sets the event or releases the semaphore."""
    is_there = event.wait(GUARD_SECONDS) if isinstance(event, threading.Event) else event.acquire(timeout=GUARD_SECONDS)
    if not is_there:
        raise _hang(what)


def _hang(what: str) -> AssertionError:
    return AssertionError(f"after {GUARD_SECONDS:g} s still waiting until {what}")
