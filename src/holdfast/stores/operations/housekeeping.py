"""Housekeeping: the part of a unit of work that finds what nobody needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.core.clock import Micros
from holdfast.core.model import DeadReason, Run
from holdfast.core.topics import EventState


class OldEvent(NamedTuple):
    """An event that nobody needs any more."""

    number: int
    topic: str
    state: EventState


class OldRun(NamedTuple):
    """An ended run whose time has come, perhaps. `size` is how many rows it has, as far as that matters."""

    run: Run
    retention: Micros
    is_kept_for_parent: bool
    size: int = 0


class Housekeeping(Protocol):
    """What nobody needs any more, the oldest first."""

    def expired_events(self, limit: int, now: Micros) -> tuple[Sequence[OldEvent], bool]:
        """Events whose time is over; and whether there may be more, which were not looked at."""
        ...

    def surplus_events(self, limit: int) -> Sequence[OldEvent]:
        """Events that are more than their topic may keep."""
        ...

    def give_up(self, event: OldEvent, reason: DeadReason, now: Micros) -> None:
        """Make a dead letter of an event that nobody took."""
        ...

    def forget_receipts(self, until: Micros, limit: int) -> int:
        """Forget messages that were received long ago; how many."""
        ...

    def forget_replies(self, until: Micros, limit: int) -> int: ...

    def ended_runs(self, limit: int, usual: Micros, room: int, now: Micros) -> Sequence[OldRun]:
        """Runs that are due to be removed: those with an instant of their own, then the others by when they ended.

        `usual` is how long runs are kept whose type does not say. Their rows are counted no further than `room`.
        """
        ...

    def defer(self, run: Run) -> None:
        """Look at a run again at the instant `purge_at` that it has now."""
        ...

    def remove(self, runs: Sequence[Run]) -> None:
        """Remove runs and all that belongs to them."""
        ...

    def remove_part(self, run: Run, room: int, now: Micros) -> None:
        """Remove so many rows of a run that has too many for one transaction. Nobody sees it from now on."""
        ...
