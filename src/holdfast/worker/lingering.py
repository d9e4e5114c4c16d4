"""Lingering: rules for how long a waiting run stays in its worker's memory, which saves a replay."""

from __future__ import annotations

from holdfast.core.clock import SECOND, Micros
from holdfast.runner.standstill import Standstill

LINGER: Micros = SECOND
"""A run whose next deadline is this near stays in memory: suspending it would cost more than it saves."""

GATHERING = 32
"""A run that waits for at least this many children stays in memory for a while after an arrival."""

GATHER_LINGER: Micros = SECOND // 4
"""Time for which such a run stays. More children end soon, and a replay for each of them takes quadratic time."""


def is_due_soon(standstill: Standstill) -> bool:
    """Return True if the next deadline of a waiting run is near enough to keep it in memory, if a slot is free."""
    return standstill.wake_at is not None and standstill.wake_at - standstill.at <= LINGER


class Gathering:
    """Keeps a run that waits for many children in memory, even if the children fill all slots of its worker."""

    __slots__ = ("_is_wide", "arrived_at")

    def __init__(self, arrived_at: Micros) -> None:
        self.arrived_at = arrived_at
        """Time of the last arrival, or 0."""
        self._is_wide = False

    def until(self, standstill: Standstill) -> Micros:
        """Return the time until which the run stays, or 0. A run that once waited for many also stays for the last."""
        if not self.arrived_at:
            return 0
        count = standstill.child_count
        self._is_wide = self._is_wide or count >= GATHERING
        return self.arrived_at + GATHER_LINGER if self._is_wide and count else 0
