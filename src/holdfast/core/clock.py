"""Time in holdfast: whole microseconds since 1970 (UTC), and clocks.

A store's clock decides leases and due times. A worker does not trust its own clock. It takes the store's `now` from
each answer and adds the monotonic time since then, so it is never ahead of the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from numbers import Real
from typing import Protocol

from holdfast.core.errors import InvalidRequest

Micros = int
"""An instant, or a length of time, in microseconds."""

SECOND: Micros = 1_000_000
DAY: Micros = 86_400 * SECOND
NEVER_SECONDS = 8_000_000_000_000.0
"""An instant beyond the life of any run, for `asyncio.sleep(math.inf)`. In microseconds it still fits into 64 bits."""
NEVER: Micros = round(NEVER_SECONDS) * SECOND
"""`NEVER_SECONDS` in microseconds."""

LENGTH_LIMIT_SECONDS = 1_000 * 365.25 * 86_400
"""Maximum length of time: 1,000 years. Beyond it, dates and 64-bit instants would overflow."""


def micros(length: float | timedelta, what: str = "") -> Micros:
    """Return a user's length of time (seconds or a timedelta) in microseconds. Error messages call it `what`."""
    return round(in_seconds(length, what) * SECOND)


def in_seconds(length: float | timedelta, what: str = "") -> float:
    """Return a user's length of time (seconds or a timedelta) in seconds. Error messages call it `what`."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float, Real)):
        raise InvalidRequest(f"{_given(length, what)}: expected seconds or a timedelta")
    if not abs(seconds) <= LENGTH_LIMIT_SECONDS:  # in this form, NaN is refused too
        raise InvalidRequest(f"{_given(length, what)} is not a length of time in seconds; the limit is 1,000 years")
    return seconds


def instant(when: datetime, what: str = "") -> Micros:
    """Return a user's datetime as an instant. Without a time zone it is taken as UTC. Messages call it `what`."""
    if not isinstance(when, datetime):
        raise InvalidRequest(f"{_given(when, what)}: expected a datetime; without a time zone it is taken as UTC")
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    at = (aware - _EPOCH) // timedelta(microseconds=1)
    if not FIRST_INSTANT <= at <= LAST_INSTANT:  # the conversion to UTC may leave the range of datetime
        raise InvalidRequest(f"{_given(when, what)}: in UTC it is outside the years 1 to 9999")
    return at


def _given(value: object, what: str) -> str:
    return f"{what}={value!r}" if what else repr(value)


def moment(at: Micros) -> datetime:
    """Return an instant as a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=at)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FIRST_INSTANT: Micros = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
LAST_INSTANT: Micros = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""The instants from `FIRST_INSTANT` to `LAST_INSTANT` are valid datetimes: the years 1 to 9999."""


class Timer(Protocol):
    """A scheduled call that can be cancelled. `Clock.call_at` returns one."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """A source of time that can also schedule calls."""

    def now(self) -> Micros: ...

    def call_at(self, when: Micros, callback: Callable[[], object]) -> Timer:
        """Call back on the running event loop at `when`, never before."""
        ...


class SystemClock:
    """The machine's clock. One instance never runs backwards."""

    def __init__(self) -> None:
        self._latest: Micros = 0

    def now(self) -> Micros:
        self._latest = max(self._latest, time.time_ns() // 1_000)
        return self._latest

    def call_at(self, when: Micros, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0, when - self.now()) / SECOND, callback)


class FollowingClock:
    """A worker's clock: the store's last `now` plus the monotonic time since then, so never ahead of the store."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        # One number, because several threads read it. Nanoseconds, because the difference of two times that are each
        # rounded down to microseconds can be one too large. The clock would then be ahead of the store.
        self._lead_ns = -monotonic_ns()

    def sync(self, now: Micros, asked_at: Micros | None = None) -> None:
        """Adopt the `now` of a store's answer, unless it is behind only because the answer was slow to arrive.

        The delay may be long: the process was stopped, or its event loop was busy. But the store answers after
        `asked_at`. If `now` is before that, the store's clock was set back. The worker must then follow. Otherwise
        it would keep asking for runs that are due by its own clock but not by the store's.
        """
        if now > self.now() or (asked_at is not None and now < asked_at):
            self._lead_ns = now * 1_000 - self._monotonic_ns()

    def now(self) -> Micros:
        return (self._lead_ns + self._monotonic_ns()) // 1_000

    def call_at(self, when: Micros, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0, when - self.now()) / SECOND, callback)
