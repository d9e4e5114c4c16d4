"""The store's clock in a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.core.clock import SECOND, Micros, instant
from holdfast.testing.simulation.loop import SimulatedLoop

_START = instant(datetime(2030, 1, 1, tzinfo=UTC))


class StoreClock:
    """The store's clock: virtual time plus an offset. A simulation can set it forwards or back."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._offset: Micros = 0
        self._furthest: Micros = 0

    def set(self, by: Micros) -> None:
        """Set the clock forwards, or back if `by` is negative."""
        self._offset += by
        self._furthest = max(self._furthest, self._offset)

    def now(self) -> Micros:
        return _START + round(self._loop.time() * SECOND) + self._offset

    def passed(self) -> Micros:
        """Return the time by the largest offset so far: setting the clock back does not undo that time has passed."""
        return _START + round(self._loop.time() * SECOND) + self._furthest

    def call_at(self, when: Micros, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0, when - self.now()) / SECOND, callback)
