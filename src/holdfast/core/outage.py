"""An outage: a time in which calls to a store fail and are retried until they work.

Every part that retries store calls has an `Outage`. It logs the first failure and the end, so that an outage of an hour
costs two log lines, not thousands. Loops call `retry`. Parts that are driven by callbacks and timers report with
`failed` and `worked`, and take growing pauses from `pauses`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from holdfast.core.errors import HoldfastError, SchemaOutOfDate, StoreUnavailable

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0

T = TypeVar("T")


def pauses(first: float = FIRST_PAUSE_SECONDS, last: float = LAST_PAUSE_SECONDS) -> Iterator[float]:
    """Yield the seconds to wait after each failed attempt. They double up to a limit."""
    pause = first
    while True:
        yield pause
        pause = min(last, pause * 2)


class Outage:
    """Logs the start and the end of an outage, once each.

    `fails` and `works` are the log messages: `cannot claim; trying again`, `claiming works again`. The reason or the
    duration follows. Any thread may report. If two report at the same instant, both may log.
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
        """True if the last attempt failed."""
        return self._began_at is not None

    def failed(self, error: BaseException) -> None:
        """Report a failed attempt. Only the first one is logged, unless a later one is worse."""
        if self._began_at is None:
            self._began_at = self._now()
            self._level = logging.NOTSET
        level = _level_of(error)
        # Example: the database is back, which the store itself logs, but now a table is missing.
        if level > self._level:
            self._level = level
            # Errors of holdfast say what to do. A traceback may quote user values, so it is logged only for bugs.
            bug = error if level >= logging.ERROR else None
            self._log.log(level, "%s: %s", self._fails, error, exc_info=bug)

    def worked(self) -> None:
        """Report an attempt that worked."""
        if (began_at := self._began_at) is not None:
            self._began_at = None
            level = min(self._level, logging.WARNING)
            self._log.log(level, "%s after %.1f s", self._works, self._now() - began_at)

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers, without a time limit. Other errors than those of an outage are raised.

        A store that was migrated under this process is an outage, too: the run goes on in a process that can use it.

        Several callers may share an outage. A call that works at once does not end it, because another may still fail.
        """
        try:
            return await call()
        except (StoreUnavailable, SchemaOutOfDate) as error:
            self.failed(error)
        try:
            answer = await self._repeat(call)
        except Exception:
            self.worked()  # the store answered, although it refused the call
            raise
        except asyncio.CancelledError:
            self._began_at = None  # no call is left that could notice the end of the outage
            raise
        self.worked()
        return answer

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        waits = pauses()
        while True:
            await asyncio.sleep(next(waits))
            try:
                return await call()
            except (StoreUnavailable, SchemaOutOfDate) as error:
                self.failed(error)


def _level_of(error: BaseException) -> int:
    """The level at which to log an error: DEBUG if the store logs it itself, ERROR if it is a bug."""
    if isinstance(error, StoreUnavailable) and error.is_noted:
        return logging.DEBUG
    return logging.WARNING if isinstance(error, HoldfastError) else logging.ERROR
