"""Routes: whether a small write is committed on the event loop itself, or handed to the writer's thread and back.

Which one is quicker depends on the machine and on what else runs there. The way to a thread and back costs about as
much as a commit; but an event loop that waits for a disk, or for a processor that others use, does nothing else
meanwhile. So both are timed as their callers see them, and now and then the one that is not in use is tried.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

QUICK_SECONDS = 0.001
"""Only commits that take less than this on average may stop the event loop."""

_TRY_EVERY = 128
_LONGEST_SECONDS = 0.1


class Routes:
    """Remembers how long either way took of late."""

    def __init__(self) -> None:
        self.commit_seconds = 2 * QUICK_SECONDS
        """How long a commit took of late, on either way. It is not known to be quick before it was seen."""
        self.loop_seconds: float | None = None
        self.thread_seconds: float | None = None
        """How long a caller waited of late on each way. The loop is believed to be quicker until both were seen."""
        self._last_seconds = 0.0
        self._count = 0

    def is_here(self) -> bool:
        """Whether the next small write is to be committed on the event loop."""
        if self.commit_seconds >= QUICK_SECONDS:
            return False
        self._count += 1
        loop, thread = self.loop_seconds, self.thread_seconds
        is_quicker = loop is None or thread is None or loop <= thread
        return is_quicker if self._count % _TRY_EVERY else not is_quicker

    def committed(self, seconds: float) -> None:
        """A commit took so long, on either way. One that took long may be mere chance; several tell of a slow disk."""
        self._last_seconds = seconds
        self.commit_seconds += (min(seconds, 2 * QUICK_SECONDS) - self.commit_seconds) / 4

    def answered_here(self) -> None:
        """The last commit was made on the event loop."""
        self.loop_seconds = _averaged(self.loop_seconds, self._last_seconds)

    def time_thread(self, answer: asyncio.Future[Any]) -> None:
        """Look how long the thread takes to answer. To be called when nobody else waits for it."""
        started = time.monotonic()
        answer.add_done_callback(lambda _: self._answered_there(time.monotonic() - started))

    def _answered_there(self, seconds: float) -> None:
        self.thread_seconds = _averaged(self.thread_seconds, seconds)


def _averaged(before: float | None, seconds: float) -> float:
    seconds = min(seconds, _LONGEST_SECONDS)
    return seconds if before is None else before + (seconds - before) / 8
