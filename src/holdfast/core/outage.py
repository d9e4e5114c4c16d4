"""An outage: a time in which something fails that is tried again until it works.

Whatever repeats a call to a store has an `Outage`. It logs the first failure and the end, so that a store that is away
for an hour costs two lines and not thousands. Loops call `retry`; parts that are driven by callbacks and timers report
with `failed` and `worked`, and take the lengths of their pauses from `pauses` if these are to grow.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from holdfast.core.errors import HoldfastError, StoreUnavailable

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0

T = TypeVar("T")


def pauses(first: float = FIRST_PAUSE_SECONDS, last: float = LAST_PAUSE_SECONDS) -> Iterator[float]:
    """The seconds to wait after each attempt that fails: each time twice as long, up to a limit."""
    pause = first
    while True:
        yield pause
        pause = min(last, pause * 2)


class Outage:
    """Logs that something fails, and that it works again, once each.

    `fails` and `works` are what it logs: `cannot claim; trying again`, `claiming works again`. The reason and the
    duration follow. Any thread may report; of two that report at the same instant both may log.
    """

    __slots__ = ("_began_at", "_fails", "_level", "_log", "_now", "_works")

    def __init__(
        self, log: logging.Logger, fails: str, works: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._fails = fails
        self._works = works
        self._now = now
        self._began_at: float | None = None
        self._level = logging.NOTSET

    @property
    def is_ongoing(self) -> bool:
        """Whether the last attempt failed."""
        return self._began_at is not None

    def failed(self, error: BaseException) -> None:
        """An attempt failed. Only the first one is logged, unless a later one is worse."""
        if self._began_at is None:
            self._began_at = self._now()
            self._level = logging.NOTSET
        level = _level_of(error)
        # Worse: the database is back, say, which the store has logged, but now a table is missing.
        if level > self._level:
            self._level = level
            # Errors of holdfast say what to do. A traceback may quote values, so only a bug is logged with it.
            bug = error if level >= logging.ERROR else None
            self._log.log(level, "%s: %s", self._fails, error, exc_info=bug)

    def worked(self) -> None:
        """An attempt worked."""
        if (began_at := self._began_at) is not None:
            self._began_at = None
            level = min(self._level, logging.WARNING)
            self._log.log(level, "%s after %.1f s", self._works, self._now() - began_at)

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers, however long that takes. Raises any other error than `StoreUnavailable`.

        Several may share an outage. A call that works at once does not end it: another one may still fail.
        """
        try:
            return await call()
        except StoreUnavailable as error:
            self.failed(error)
        try:
            answer = await self._repeat(call)
        except Exception:
            self.worked()  # the store has answered, though it refuses what was asked
            raise
        except asyncio.CancelledError:
            self._began_at = None  # nobody is left to find out that it works again
            raise
        self.worked()
        return answer

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        waits = pauses()
        while True:
            await asyncio.sleep(next(waits))
            try:
                return await call()
            except StoreUnavailable as error:
                self.failed(error)


def _level_of(error: BaseException) -> int:
    """The level at which to log an error: DEBUG if the store logs it itself, ERROR if it is a bug."""
    if isinstance(error, StoreUnavailable) and error.is_noted:
        return logging.DEBUG
    return logging.WARNING if isinstance(error, HoldfastError) else logging.ERROR
