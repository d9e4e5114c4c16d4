"""The turn of a run as its driver sees it. No I/O, and no rule of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.checkpoint import Checkpoint, Next
from holdfast.core.clock import Micros
from holdfast.core.model import Entry
from holdfast.runner.attempt import AttemptEnd
from holdfast.runner.inbox import Inbox
from holdfast.runner.operation import StepCall
from holdfast.runner.pending_checkpoint import PendingCheckpoint
from holdfast.runner.standstill import Standstill


class RunTurn(Protocol):
    """A turn as its driver sees it; `Turn` and `TaskTurn` are the two kinds.

    The driver keeps three rules. It executes a step only if a standstill says so. It writes checkpoints in the order
    in which it took them, one at a time. It drops the turn if the store refuses one.
    """

    inbox: Inbox
    pending: PendingCheckpoint
    has_database: bool
    is_overdue: bool
    """Whether a time-out is due and waits for the next checkpoint, which may bring what came before it."""
    due_since: Micros | None
    """The instant of the first thing that had come, or was due: since then the run could have been claimed."""

    def begin(self, now: Micros) -> Standstill:
        """Start or resume the run, and go on to the first standstill."""
        ...

    def settle(self, now: Micros) -> Standstill:
        """Feed what can be fed by `now`, and go on to the next standstill."""
        ...

    def feed(self, call: StepCall, end: AttemptEnd, now: Micros) -> Standstill:
        """Feed the end of an attempt at a step, and go on to the next standstill."""
        ...

    def standstill(self, now: Micros) -> Standstill:
        """What the turn wants now, without feeding anything."""
        ...

    def started(self, call: StepCall, now: Micros) -> None:
        """A step of a standstill is being executed."""
        ...

    # Checkpoints

    def take_checkpoint(self, next: Next, now: Micros) -> Checkpoint:
        """Everything to be written now. The turn goes on; what it gains meanwhile is for the next checkpoint."""
        ...

    def committed(self, now: Micros) -> Standstill:
        """The checkpoint taken last is in the store."""
        ...

    # What bodies report

    def publish(self, name: str, value: str) -> None:
        """Set a named value that everybody can read."""
        ...

    def beat(self, number: int) -> None:
        """Have the next checkpoint say that a body is alive; `number` counts these signs under this lease."""
        ...

    # Leaving

    def remember(self, written: Checkpoint) -> None:
        """Add what was written to the history, for a turn that will take over from this one."""
        ...

    def inherit(self, old: RunTurn) -> None:
        """Take over from an earlier turn of the same lease what it knows to be in the store beside the history."""
        ...

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries this turn began with or was told to remember."""
        ...

    @property
    def unfinished(self) -> int:
        """The number of tasks of the code that have not ended."""
        ...

    @property
    def survivors(self) -> Sequence[str]:
        """The lines at which code stands that swallowed every attempt to close it; known after `evict`."""
        ...

    def evict(self) -> None:
        """Leave memory: close every coroutine. Nothing that is still done counts."""
        ...
