"""Housekeeping: the part of a unit of work that finds and removes data that is no longer needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.core.clock import Micros
from holdfast.core.model import DeadReason, Run
from holdfast.core.topics import EventState


class OldEvent(NamedTuple):
    """An event that is no longer needed."""

    number: int
    topic: str
    state: EventState


class OldRun(NamedTuple):
    """An ended run that may be due for removal. `size` is its number of rows, or 0 if the store need not count them."""

    run: Run
    retention: Micros
    is_kept_for_parent: bool
    size: int = 0


class Housekeeping(Protocol):
    """Data that is no longer needed, oldest first."""

    def expired_events(self, limit: int, now: Micros) -> tuple[Sequence[OldEvent], bool]:
        """Return expired events, and True if there may be more that were not examined."""
        ...

    def surplus_events(self, limit: int) -> Sequence[OldEvent]:
        """Return the events beyond the number that their topic may keep."""
        ...

    def give_up(self, event: OldEvent, reason: DeadReason, now: Micros) -> None:
        """Keep a pending event of a queue as a dead letter."""
        ...

    def forget_receipts(self, until: Micros, limit: int) -> int:
        """Delete receipts of messages received up to an instant, at most `limit`. Return how many."""
        ...

    def forget_replies(self, until: Micros, limit: int) -> int:
        """Delete replies given up to an instant, at most `limit`. Return how many."""
        ...

    def ended_runs(self, limit: int, usual: Micros, room: int, now: Micros) -> Sequence[OldRun]:
        """Return runs that are due for removal: runs with a `purge_at` first, then the others by the time they ended.

        `usual` is the retention of runs whose type does not set one. Rows of one kind are counted up to `room`.
        """
        ...

    def defer(self, run: Run) -> None:
        """Write the new `purge_at` of a run, the instant at which it is examined again."""
        ...

    def remove(self, runs: Sequence[Run]) -> None:
        """Remove runs with everything that belongs to them."""
        ...

    def remove_part(self, run: Run, room: int, now: Micros) -> None:
        """Remove `room` rows of a run that has too many for one transaction. The run is hidden from now on."""
        ...
