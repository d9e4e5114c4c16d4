"""A hint: what has just happened in a store, told to whoever listens. Losing one may only cost latency."""

from __future__ import annotations

import msgspec

_NONE: frozenset[str] = frozenset()


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Types of which runs became ready; runs that got arrivals while held, ended, were taken from a holder, replied.

    `is_rescheduled`: a schedule was set or changed. `is_foreign`: all this was done by another process.
    `is_elsewhere`: something was written by another process; look for yourself.
    """

    ready: frozenset[str] = _NONE
    arrived: frozenset[str] = _NONE
    ended: frozenset[str] = _NONE
    taken: frozenset[str] = _NONE
    replied: frozenset[str] = _NONE
    is_rescheduled: bool = False
    is_foreign: bool = False
    is_elsewhere: bool = False


class News:
    """What a transaction will have to tell, gathered while it goes on."""

    __slots__ = ("arrived", "ended", "is_rescheduled", "ready", "replied", "taken")

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.arrived: set[str] = set()
        self.ended: set[str] = set()
        self.taken: set[str] = set()
        self.replied: set[str] = set()
        self.is_rescheduled = False

    def add(self, other: News | Hint) -> None:
        """Tell what another one has to tell, too."""
        self.ready |= other.ready
        self.arrived |= other.arrived
        self.ended |= other.ended
        self.taken |= other.taken
        self.replied |= other.replied
        self.is_rescheduled |= other.is_rescheduled

    def hint(self) -> Hint | None:
        """The hint to give when it is committed, if there is anything to tell."""
        if not (self.ready or self.arrived or self.ended or self.taken or self.replied or self.is_rescheduled):
            return None
        return Hint(
            # The very default where there is nothing: only that is left out when a hint is posted to other processes.
            ready=frozenset(self.ready) or _NONE,
            arrived=frozenset(self.arrived) or _NONE,
            ended=frozenset(self.ended) or _NONE,
            taken=frozenset(self.taken) or _NONE,
            replied=frozenset(self.replied) or _NONE,
            is_rescheduled=self.is_rescheduled,
        )
