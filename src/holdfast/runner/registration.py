"""The registration of a run's waits: which of them the store knows, and which it must be told."""

from __future__ import annotations

from holdfast.core.checkpoint import Block, Hold, Next, Suspend
from holdfast.core.model import Wait, WaitKind
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Operation


class Registration:
    """The waits of a held run as they stand in the store."""

    def __init__(self, open_operations: OpenOperations, *, is_first_lease: bool) -> None:
        self._open = open_operations
        # A first claim finds no wait rows; a later one may, and the first checkpoint then writes the full set.
        self._written: tuple[Wait, ...] | None = () if is_first_lease else None
        self._written_events: frozenset[Wait] = frozenset()
        self._known_events: frozenset[Wait] = frozenset()
        self._has_new = False
        self._version = 0

    def has_new(self) -> bool:
        """Whether the run waits for something by name that the store does not know."""
        if self._open.named_version != self._version:
            self._version = self._open.named_version
            self._has_new = self._open.named_waits() != (self._written or ())
        return self._has_new

    def write(self, next: Next, limits: tuple[Wait, ...] = ()) -> tuple[Wait, ...] | None:
        """The full set of waits for a checkpoint, or None if what the store has will do.

        `limits` end a suspension though nothing comes that the run asked for.
        """
        waits: tuple[Wait, ...] | None = None
        if isinstance(next, Suspend):
            waits = self._open.waits() + limits
        elif isinstance(next, Hold) and (self._written is None or self.has_new()):
            waits = self._open.named_waits()
        elif isinstance(next, Block):
            waits = ()
        if waits is not None:
            self._written = waits
            # Most runs wait for no events, and a parent may wait for thousands of children.
            if self._open.has_only_children:
                self._written_events = frozenset()
            elif waits or self._written_events:
                self._written_events = frozenset(wait for wait in waits if wait.kind is WaitKind.EVENT)
        self._has_new = False
        return waits

    def committed(self) -> None:
        """What was written last is in the store."""
        self._known_events = self._written_events

    def knows(self, operation: Operation) -> bool:
        """Whether the store knows the wait of an operation for an event."""
        return self._open.wait_of(operation) in self._known_events

    def inherit(self, old: Registration) -> None:
        """Take over from the registration of an earlier turn of the same lease."""
        self._written = old._written
        self._written_events = old._written_events
        self._known_events = old._known_events
