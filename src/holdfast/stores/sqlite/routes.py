"""Routes: decide if a small write is committed on the event loop itself or in the writer's thread.

The quicker route depends on the machine and its load. Handing a write to the thread and back costs about as much as a
commit. But an event loop that waits for a disk or a busy processor does nothing else meanwhile. So both routes are
timed as callers see them, and the route not in use is tried at intervals.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

QUICK_SECONDS = 0.001
"""Maximum average duration of a commit that may block the event loop."""

_TRY_EVERY = 128
_LONGEST_SECONDS = 0.1


class Routes:
    """Remembers the recent durations of both routes."""

    def __init__(self) -> None:
        self.commit_seconds = 2 * QUICK_SECONDS
        """Moving average of commits on both routes. Starts as slow until commits prove to be quick."""
        self.loop_seconds: float | None = None
        self.thread_seconds: float | None = None
        """Moving averages of how long a caller waited. The loop counts as quicker until both are known."""
        self._last_seconds = 0.0
        self._count = 0

    def is_here(self) -> bool:
        """Return True if the next small write should be committed on the event loop."""
        if self.commit_seconds >= QUICK_SECONDS:
            return False
        self._count += 1
        loop, thread = self.loop_seconds, self.thread_seconds
        is_quicker = loop is None or thread is None or loop <= thread
        return is_quicker if self._count % _TRY_EVERY else not is_quicker

    def committed(self, seconds: float) -> None:
        """Record the duration of a commit on either route."""
        self._last_seconds = seconds
        # Capped: one slow commit may be chance. Several in a row mean a slow disk, and raise the average anyway.
        self.commit_seconds += (min(seconds, 2 * QUICK_SECONDS) - self.commit_seconds) / 4

    def answered_here(self) -> None:
        """Note that the last commit was made on the event loop."""
        self.loop_seconds = _averaged(self.loop_seconds, self._last_seconds)

    def time_thread(self, answer: asyncio.Future[Any]) -> None:
        """Measure how long the thread takes to answer. Call it only while the thread's queue is empty."""
        started = time.monotonic()
        answer.add_done_callback(lambda _: self._answered_there(time.monotonic() - started))

    def _answered_there(self, seconds: float) -> None:
        self.thread_seconds = _averaged(self.thread_seconds, seconds)


def _averaged(before: float | None, seconds: float) -> float:
    seconds = min(seconds, _LONGEST_SECONDS)
    return seconds if before is None else before + (seconds - before) / 8
