"""A virtual clock that advances only when a test advances it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.core.clock import Micros, instant


class VirtualTimer:
    """A callback scheduled for a virtual instant. It can be cancelled."""

    __slots__ = ("callback", "is_cancelled", "when")

    def __init__(self, when: Micros, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class VirtualClock:
    """A clock for tests that moves only by `pass_to`: for a store and its workers at once."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = instant(start)
        self._timers: list[tuple[Micros, int, VirtualTimer]] = []
        self._count = 0

    def now(self) -> Micros:
        """The virtual time, in microseconds since 1970."""
        return self._now

    def sync(self, now: Micros, asked_at: Micros | None = None) -> None:
        """Ignore the time in a store's answer: the store uses this same clock."""

    def call_at(self, when: Micros, callback: Callable[[], object]) -> VirtualTimer:
        """Call a function when the clock has passed to an instant. `cancel()` on the result takes that back."""
        timer = VirtualTimer(when, callback)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def next_due(self) -> Micros | None:
        """The instant of the next call, if there is one."""
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def pass_to(self, when: Micros) -> list[Callable[[], object]]:
        """Let time pass to an instant, and return the functions to call that are due, in order."""
        self._now = max(self._now, when)
        due = []
        while (at := self.next_due()) is not None and at <= self._now:
            due.append(heapq.heappop(self._timers)[2].callback)
        return due
