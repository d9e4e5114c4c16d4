"""Time as holdfast keeps it: whole microseconds since 1970, and clocks that tell it.

A store's clock decides leases and due times. A worker never trusts its own: it takes the
store's `now` from each answer and adds the monotonic time since, so it is never ahead.
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
"""An instant that no run will see, for `asyncio.sleep(math.inf)`; it still fits into 64 bits of microseconds."""
NEVER: Micros = round(NEVER_SECONDS) * SECOND
"""The same in microseconds."""

LENGTH_LIMIT_SECONDS = 1_000 * 365.25 * 86_400
"""Longer than any wait; beyond it a date could no longer be told, nor an instant be kept in 64 bits."""


def micros(length: float | timedelta, what: str = "") -> Micros:
    """A length given by a user as `what`, in seconds or as a timedelta, in microseconds."""
    return round(in_seconds(length, what) * SECOND)


def in_seconds(length: float | timedelta, what: str = "") -> float:
    """A length given by a user as `what`, in seconds or as a timedelta, in seconds."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float, Real)):
        raise InvalidRequest(f"{_given(length, what)}: it is seconds or a timedelta")
    if not abs(seconds) <= LENGTH_LIMIT_SECONDS:  # so written, NaN is refused too
        raise InvalidRequest(f"{_given(length, what)} is no length of time in seconds; the limit is 1,000 years")
    return seconds


def instant(when: datetime, what: str = "") -> Micros:
    """A moment given by a user as `what`; one without a zone is taken as UTC."""
    if not isinstance(when, datetime):
        raise InvalidRequest(f"{_given(when, what)}: it is a datetime; one without a zone is taken as UTC")
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    at = (aware - _EPOCH) // timedelta(microseconds=1)
    if not FIRST_INSTANT <= at <= LAST_INSTANT:  # its zone may be hours from UTC
        raise InvalidRequest(f"{_given(when, what)}: in UTC it is not in the years 1 to 9999")
    return at


def _given(value: object, what: str) -> str:
    return f"{what}={value!r}" if what else repr(value)


def moment(at: Micros) -> datetime:
    """An instant as users see it."""
    return _EPOCH + timedelta(microseconds=at)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FIRST_INSTANT: Micros = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
LAST_INSTANT: Micros = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""Between these two an instant is a date: the years 1 to 9999."""


class Timer(Protocol):
    """What `Clock.call_at` returns: a call that can still be taken back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Something that tells the time and calls back when it has come."""

    def now(self) -> Micros: ...

    def call_at(self, when: Micros, callback: Callable[[], object]) -> Timer:
        """Call back on the running event loop at `when`, never before."""
        ...


class SystemClock:
    """The machine's clock. It never runs backwards within one process."""

    def __init__(self) -> None:
        self._latest: Micros = 0

    def now(self) -> Micros:
        self._latest = max(self._latest, time.time_ns() // 1_000)
        return self._latest

    def call_at(self, when: Micros, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0, when - self.now()) / SECOND, callback)


class FollowingClock:
    """A worker's clock: the store's last `now` plus monotonic time since, so never ahead of the store."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        # One number, as it is read in several threads; and in nanoseconds: of two times that are each cut to
        # microseconds the difference may be one too many, and the clock ahead of the store's.
        self._lead_ns = -monotonic_ns()

    def told(self, now: Micros, asked_at: Micros | None = None) -> None:
        """Take over the `now` of a store's answer, unless it is only behind because it took a while to arrive.

        That may be long: the process stood still, or its loop was kept busy. But no answer is from before it was
        asked for. One that says so tells that the store's clock was set back; whoever did not follow would ask over
        and over for what is due by his clock and not by the store's.
        """
        if now > self.now() or (asked_at is not None and now < asked_at):
            self._lead_ns = now * 1_000 - self._monotonic_ns()

    def now(self) -> Micros:
        return (self._lead_ns + self._monotonic_ns()) // 1_000

    def call_at(self, when: Micros, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0, when - self.now()) / SECOND, callback)
