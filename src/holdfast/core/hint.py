"""A hint: news of a change in a store, for its listeners. A lost hint costs only latency."""

from __future__ import annotations

import msgspec

_NONE: frozenset[str] = frozenset()


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effects of a transaction that other parts may wait for.

    `ready` are types that have runs which became ready. The other sets are run ids: held runs that got arrivals, runs
    that ended, runs taken from their holders, and runs that replied. `is_rescheduled`: a schedule was set or changed.
    `is_foreign`: another process did all this. `is_elsewhere`: another process wrote something; query the store.
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
    """Collects the effects of a transaction while it runs, for its hint."""

    __slots__ = ("arrived", "ended", "is_rescheduled", "ready", "replied", "taken")

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.arrived: set[str] = set()
        self.ended: set[str] = set()
        self.taken: set[str] = set()
        self.replied: set[str] = set()
        self.is_rescheduled = False

    def add(self, other: News | Hint) -> None:
        """Add the effects of another one."""
        self.ready |= other.ready
        self.arrived |= other.arrived
        self.ended |= other.ended
        self.taken |= other.taken
        self.replied |= other.replied
        self.is_rescheduled |= other.is_rescheduled

    def hint(self) -> Hint | None:
        """Return the hint to send after the commit; None if it would be empty."""
        if not (self.ready or self.arrived or self.ended or self.taken or self.replied or self.is_rescheduled):
            return None
        return Hint(
            # `or _NONE`: only the default object itself is omitted when a hint is encoded for other processes.
            ready=frozenset(self.ready) or _NONE,
            arrived=frozenset(self.arrived) or _NONE,
            ended=frozenset(self.ended) or _NONE,
            taken=frozenset(self.taken) or _NONE,
            replied=frozenset(self.replied) or _NONE,
            is_rescheduled=self.is_rescheduled,
        )
