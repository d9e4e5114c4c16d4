"""Lingering: how long a run that only waits stays in the memory of its worker, so that it need not be replayed."""

from __future__ import annotations

from holdfast.core.clock import SECOND, Micros
from holdfast.runner.standstill import Standstill

LINGER: Micros = SECOND
"""A run whose next deadline is this near stays in memory; giving it back would cost more than it saves."""

GATHERING = 32
GATHER_LINGER: Micros = SECOND // 4
"""A run that waits for so many children stays in memory for this long after something arrived: others end soon, too,
and to replay all that it has done for each of them would take quadratic time."""


def is_due_soon(standstill: Standstill) -> bool:
    """Whether a run that only waits stays in memory because of its next deadline, if there is room for it."""
    return standstill.wake_at is not None and standstill.wake_at - standstill.at <= LINGER


class Gathering:
    """Keeps a run in memory that waits for many children, also if its worker is full of them."""

    __slots__ = ("_is_wide", "arrived_at")

    def __init__(self, arrived_at: Micros) -> None:
        self.arrived_at = arrived_at
        """When something arrived last, or 0."""
        self._is_wide = False

    def until(self, standstill: Standstill) -> Micros:
        """Until when the run stays; 0 if it does not. Once it has waited for many, it stays for the last few, too."""
        if not self.arrived_at:
            return 0
        count = standstill.child_count
        self._is_wide = self._is_wide or count >= GATHERING
        return self.arrived_at + GATHER_LINGER if self._is_wide and count else 0
