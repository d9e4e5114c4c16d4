"""The history of a flow run in memory: positions, the time of the last fact, and the engine's own entries."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.clock import Micros
from holdfast.core.model import Entry


class FlowHistory:
    """The part of a flow's history that a turn needs. Its past stays in the store.

    `position` is the last one that an entry has. `since` is the last position of a fact or of a snapshot, `last_fact`
    only of a fact. `stamp` is the time of the last fact.
    """

    def __init__(self, entries: Iterable[Entry], stamp: Micros) -> None:
        self._entries = {entry.location: entry for entry in entries}
        self.stamp = stamp
        self.position = 0
        self.since = 0
        self.last_fact = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    def get(self, location: str) -> Entry | None:
        return self._entries.get(location)

    def remember(self, entries: Iterable[Entry]) -> None:
        """Take in entries of the engine, which a lease contains. Those for people are left out."""
        self._entries.update((one.location, one) for one in entries if one.location.startswith("~"))

    def drop(self, location: str) -> None:
        self._entries.pop(location, None)

    def next_position(self) -> int:
        self.position += 1
        return self.position

    def place_fact(self, now: Micros) -> int:
        """Return the position of the next fact, and let time continue to it."""
        self.stamp = max(self.stamp, now)
        self.since = self.last_fact = self.next_position()
        return self.position

    def place_snapshot(self) -> int:
        """Return the position of a snapshot. What the program asks for from now on is not in it."""
        self.since = self.next_position()
        return self.position
