"""The registration of a run's waits: which of them the store has, and which a checkpoint must write."""

from __future__ import annotations

from holdfast.core.checkpoint import Block, Hold, Next, Suspend
from holdfast.core.model import Wait, WaitKind
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Operation, Reception


class Registration:
    """The waits of a held run as they are in the store."""

    def __init__(self, open_operations: OpenOperations, *, is_first_lease: bool) -> None:
        self._open = open_operations
        # A first claim finds no waits in the store. A later claim may, so its first checkpoint writes the full set.
        self._written: tuple[Wait, ...] | None = () if is_first_lease else None
        self._written_events: frozenset[Wait] = frozenset()
        self._known_events: frozenset[Wait] = frozenset()
        self._has_new = False
        self._version = 0

    def has_new(self) -> bool:
        """True if the named waits of the run differ from those in the store."""
        if self._open.named_version != self._version:
            self._version = self._open.named_version
            self._has_new = self._open.named_waits() != (self._written or ())
        return self._has_new

    def write(self, next: Next, limits: tuple[Wait, ...] = ()) -> tuple[Wait, ...] | None:
        """Return the full set of waits for a checkpoint. None if the store does not need to change its set.

        `limits` are waits that end a suspension even if nothing arrives.
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
            # Skip the scan for events: most runs wait for none, and a parent may wait for thousands of children.
            if self._open.has_only_children:
                self._written_events = frozenset()
            elif waits or self._written_events:
                self._written_events = frozenset(wait for wait in waits if wait.kind is WaitKind.EVENT)
        self._has_new = False
        return waits

    def committed(self) -> None:
        """Note that the waits written last are in the store."""
        self._known_events = self._written_events

    def knows(self, operation: Operation) -> bool:
        """True if the store has the event wait of an operation."""
        return self._open.wait_of(operation) in self._known_events

    def must_come_first(self, operation: Operation) -> bool:
        """True if the store must know the wait of an operation before its deadline is fed.

        Only the store can decide whether an event came before the deadline.
        """
        is_event = isinstance(operation, Reception) and operation.wait_kind is WaitKind.EVENT
        return is_event and not self.knows(operation)

    def inherit(self, old: Registration) -> None:
        """Take over the registration of an earlier turn of the same lease."""
        self._written = old._written
        self._written_events = old._written_events
        self._known_events = old._known_events
