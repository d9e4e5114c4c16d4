"""Open operations: the operations that a run's code has asked for and that are not settled."""

from __future__ import annotations

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.model import EntryKind, Wait
from holdfast.runner.inbox import Inbox
from holdfast.runner.operation import ChildEnd, ChildGroup, Operation, Reception, StepCall, TxCall


class Frontier(msgspec.Struct, frozen=True):
    """The state of the open operations of a run at an instant.

    `start` has the steps to execute now. `is_waiting` means that no step executes or could start. `wake_at` is the
    instant of the next timer, timeout or attempt. `child_count` is the number of single children that are awaited.
    """

    start: list[StepCall]
    is_waiting: bool
    wake_at: Micros | None
    child_count: int


class OpenOperations:
    """Open operations by location. No method iterates over the executing steps, of which there may be many."""

    named_version = 0
    """Grows whenever `named_waits` may have changed."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.by_location: dict[str, Operation] = {}
        self._idle: dict[str, StepCall] = {}
        self._executing = 0
        # Waits for messages, events and children. They are registered in the store even while the run is held.
        self._named: dict[str, Operation] = {}
        # The waits of single children, in the order of `_named` and `by_location`. They never change, and there may be
        # thousands. They are kept, so that a wake-up of the parent does not build all of them again.
        self._child_waits: dict[str, Wait] = {}

    def kinds(self) -> dict[str, EntryKind]:
        """Return the kinds of the open operations, by location."""
        return {location: operation.kind for location, operation in self.by_location.items()}

    def holds(self, operation: Operation) -> bool:
        """True if an operation is still open."""
        return self.by_location.get(operation.location) is operation

    def add(self, operation: Operation, *, is_recorded: bool) -> None:
        """Add an operation. A recorded one only waits to be replayed."""
        self.by_location[operation.location] = operation
        if is_recorded:
            return
        if isinstance(operation, StepCall):
            self._idle[operation.location] = operation
            return
        if isinstance(operation, (Reception, ChildEnd, ChildGroup)):
            self._named[operation.location] = operation
            self.named_version += 1
            if isinstance(operation, ChildEnd):
                self._child_waits[operation.location] = operation.wait(0)
        self.inbox.ask(operation)

    def remove(self, operation: Operation) -> None:
        """Remove an operation that was answered, or that the code no longer waits for."""
        del self.by_location[operation.location]
        if isinstance(operation, StepCall):
            if self._idle.pop(operation.location, None) is None:
                self._executing -= operation.is_started
            return
        if self._named.pop(operation.location, None) is not None:
            self.named_version += 1
            self._child_waits.pop(operation.location, None)
        self.inbox.withdraw(operation)

    def mark_started(self, call: StepCall) -> None:
        """Note that a step is being executed."""
        call.is_started = True
        del self._idle[call.location]
        self._executing += 1

    def mark_waiting(self, call: StepCall) -> None:
        """Note that an executed step now waits for its next attempt."""
        call.is_started = False
        self._idle[call.location] = call
        self._executing -= 1

    def due_steps(self, now: Micros) -> list[StepCall]:
        """Return the steps that are not being executed here and need not wait for their next attempt."""
        return [call for call in self._idle.values() if call.retry_at is None or call.retry_at <= now]

    @property
    def has_steps(self) -> bool:
        return bool(self._idle) or self._executing > 0

    def frontier(self, now: Micros, committed: int, *, may_carry: bool) -> Frontier:
        """Return the state of the open operations at `now`, if the store has the first `committed` facts.

        A step starts when it is due and all facts that led to it are committed. With `may_carry`, a transaction may
        commit those facts itself.
        """
        start: list[StepCall] = []
        is_waiting = not self._executing
        wake_at = self.inbox.next_deadline() if self.inbox.awaited else None
        for call in self._idle.values():
            if call.retry_at is not None and call.retry_at > now:
                if wake_at is None or call.retry_at < wake_at:
                    wake_at = call.retry_at
                continue
            is_waiting = False
            if call.after <= committed or (may_carry and isinstance(call, TxCall)):
                start.append(call)
        return Frontier(start, is_waiting, wake_at, len(self._child_waits))

    def has_nothing_due(self, now: Micros) -> bool:
        """True if nothing can happen to the run at `now`: no step executes or could start, and nothing has arrived."""
        if self._executing or self.inbox.has_due(now):
            return False
        return all(call.retry_at is not None and call.retry_at > now for call in self._idle.values())

    def next_deadline(self) -> Micros | None:
        """Return the instant of the next timer, timeout or attempt."""
        deadline = self.inbox.next_deadline()
        for call in self._idle.values():
            if call.retry_at is not None and (deadline is None or call.retry_at < deadline):
                deadline = call.retry_at
        return deadline

    @property
    def has_only_children(self) -> bool:
        """True if all named waits are waits for single children."""
        return len(self._child_waits) == len(self._named)

    def named_waits(self) -> tuple[Wait, ...]:
        """Return the waits to register while the run is held. Its timers are in the worker's memory."""
        known = self._child_waits
        if self.has_only_children:
            return tuple(known.values())
        return tuple(known.get(location) or self.wait_of(operation) for location, operation in self._named.items())

    def waits(self) -> tuple[Wait, ...]:
        """Return every wait, for a run that suspends."""
        known = self._child_waits
        if len(known) == len(self.by_location):
            return tuple(known.values())
        return tuple(
            known.get(location) or self.wait_of(operation)
            for location, operation in self.by_location.items()
            if not isinstance(operation, StepCall) or operation.retry_at is not None
        )

    def wait_of(self, operation: Operation) -> Wait:
        """Return the wait of an operation."""
        topic = operation.names[0] if isinstance(operation, Reception) and operation.names else ""
        wait = operation.wait(self.inbox.had(topic))
        assert wait is not None, f"the operation at {operation.location} has no wait"
        return wait

    def clear(self) -> None:
        """Remove all operations."""
        self.by_location.clear()
        self._idle.clear()
        self._named.clear()
        self._child_waits.clear()
