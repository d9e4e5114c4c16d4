"""The protocol between a turn and its driver. No I/O, and no rule of its own."""

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
    """The interface of a turn for its driver. `Turn` and `TaskTurn` implement it.

    The driver keeps three rules. It executes a step only if a standstill says so. It writes checkpoints in the order
    in which it took them, one at a time. It drops the turn if the store refuses a checkpoint.
    """

    inbox: Inbox
    pending: PendingCheckpoint
    has_database: bool
    is_overdue: bool
    """True if a timeout is due but waits for the next checkpoint, whose answer may bring an earlier arrival."""
    due_since: Micros | None
    """Instant of the first arrival or deadline fed. The run could have been claimed since then."""

    def begin(self, now: Micros) -> Standstill:
        """Start or resume the run, and run to the first standstill."""
        ...

    def settle(self, now: Micros) -> Standstill:
        """Feed everything that is due by `now`, and run to the next standstill."""
        ...

    def feed(self, call: StepCall, end: AttemptEnd, now: Micros) -> Standstill:
        """Feed the end of an attempt at a step, and run to the next standstill."""
        ...

    def standstill(self, now: Micros) -> Standstill:
        """Return the current standstill without feeding anything."""
        ...

    def started(self, call: StepCall, now: Micros) -> None:
        """Note that the driver executes a step of a standstill."""
        ...

    # Checkpoints

    def take_checkpoint(self, next: Next, now: Micros) -> Checkpoint:
        """Return a checkpoint of everything pending. Facts that are fed later go into the next checkpoint."""
        ...

    def committed(self, now: Micros) -> Standstill:
        """Note that the checkpoint taken last is in the store."""
        ...

    # Reports of step bodies

    def publish(self, name: str, value: str) -> None:
        """Set a named value that other processes can read."""
        ...

    def beat(self, number: int) -> None:
        """Let the next checkpoint record a heartbeat of a body. `number` counts the heartbeats under this lease."""
        ...

    # Leaving

    def remember(self, written: Checkpoint) -> None:
        """Add a written checkpoint to the history, for a turn that will take over from this one."""
        ...

    def inherit(self, old: RunTurn) -> None:
        """Take over what an earlier turn of the same lease knows about the store, besides the history."""
        ...

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of the lease, and those added by `remember`."""
        ...

    @property
    def unfinished(self) -> int:
        """The number of tasks of the code that have not ended."""
        ...

    @property
    def survivors(self) -> Sequence[str]:
        """Lines of code that swallowed every attempt to close it. Known after `evict`."""
        ...

    def evict(self) -> None:
        """Close every coroutine, so that the run leaves memory. Requests of code that still runs are ignored."""
        ...
