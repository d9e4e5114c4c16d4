"""What all turns share: the protocol with the driver, the limits of a run's time, and how errors end a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.core import rules
from holdfast.core.checkpoint import Block, Checkpoint, ContinueAsNew, Finish, Next, StartRollback
from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import ErrorRecord, HoldfastError
from holdfast.core.model import Entry, Run, Wait, WaitKind
from holdfast.core.states import RunState
from holdfast.runner.inbox import Inbox
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import AttemptEnd, StepCall
from holdfast.runner.pending_checkpoint import PendingCheckpoint

TurnEnd = Finish | StartRollback | ContinueAsNew | Block
"""The end of a turn whose code has ended or cannot continue."""


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions of a turn to its driver, as of the instant `at`.

    The driver executes the steps in `start` and calls `started` for each. It drops the bodies at the locations in
    `abandon`. If there is an `end`, it writes a checkpoint with it. Otherwise it may suspend the run if `may_suspend`,
    and it writes a checkpoint and continues if `must_write`. It calls `settle` at `wake_at`.
    `child_count` is the number of single children that the run waits for.
    """

    at: Micros
    start: Sequence[StepCall] = ()
    abandon: Sequence[str] = ()
    end: TurnEnd | None = None
    may_suspend: bool = False
    must_write: bool = False
    wake_at: Micros | None = None
    child_count: int = 0


class TimeLimits:
    """The `max_run` and `max_suspend` of a run. Most runs have neither, and a run that rolls back has none."""

    __slots__ = ("_max_suspend", "_run", "end_by")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._max_suspend = run.options.max_suspend
        self.end_by = run.end_by
        """Instant by which the run must end."""

    @staticmethod
    def of(run: Run) -> TimeLimits | None:
        """Return the limits of a run, or None if it has none. A rollback has no limit."""
        if run.rollback is not None or (run.options.max_suspend is None and run.end_by is None):
            return None
        return TimeLimits(run)

    def exceeded(self, now: Micros, open_operations: OpenOperations, *, fed: int, stamp: Micros) -> str | None:
        """Return the reason to cancel the run, if it took too long or was suspended for too long."""
        if self.end_by is not None and now >= self.end_by:
            return f"it ran longer than its max_run of {(self._run.options.max_run or 0) / SECOND:g} s"
        since = self._suspended_since(fed, stamp)
        if self._max_suspend is None or since is None or now < since + self._max_suspend:
            return None
        if not open_operations.has_nothing_due(now):
            return None
        return f"it was suspended longer than its max_suspend of {self._max_suspend / SECOND:g} s"

    def waits(self, now: Micros, *, fed: int, stamp: Micros) -> tuple[Wait, ...]:
        """Return the waits that end a suspension, or the run, even if nothing arrives."""
        length, since = self._max_suspend, self._suspended_since(fed, stamp) or now
        limits = (
            (rules.MAX_RUN_LOCATION, self._run.start_at, self.end_by),
            (rules.MAX_SUSPEND_LOCATION, since, None if length is None else since + length),
        )
        return tuple(
            Wait(location=location, kind=WaitKind.TIME, since=since, deadline=deadline)
            for location, since, deadline in limits
            if deadline is not None
        )

    def earliest(self, deadline: Micros | None) -> Micros | None:
        """Return the earlier of a deadline and the instant by which the run must end."""
        return deadline if self.end_by is None or (deadline is not None and deadline < self.end_by) else self.end_by

    def _suspended_since(self, fed: int, stamp: Micros) -> Micros | None:
        """Return the start of the current suspension. A wake-up does not end a suspension if nothing arrived."""
        since = self._run.suspended_at
        return since if since is not None and fed == 0 and stamp <= since else None


class Executed(Protocol):
    """The definition of a run, as far as its end depends on it: a `Definition` or a `FlowType`."""

    @property
    def reason(self) -> ErrorRecord | None: ...

    @property
    def crash_limit(self) -> int: ...


def undone_first(end: Finish, *, has_undo: bool) -> Finish | StartRollback:
    """Return the end of a run, or the rollback that comes first if the run did not succeed and has steps to undo."""
    if end.state is RunState.SUCCEEDED or not has_undo:
        return end
    return StartRollback(end=end.state, error=end.error or ErrorRecord(type="Unknown", message=""))


def cancelled(why: str) -> Finish:
    """Return the end of a run that exceeded one of its time limits."""
    return Finish(state=RunState.CANCELLED, error=rules.cancellation(why))


def blocked(run: Run, definition: Executed, error: HoldfastError, now: Micros) -> Block:
    """Return the block of a run that cannot continue. Workers retry it later, because a fixed deploy heals it."""
    previous = run.error if run.error != definition.reason else None
    count, pause = rules.blocked_retry(previous)
    return Block(error=ErrorRecord.of(error, attempts=count), retry_at=now + pause)


def crash_loop(run: Run, definition: Executed) -> Block | None:
    """Return the block of a run with too many worker crashes in a row. None if it has fewer than its limit."""
    if run.crashes < definition.crash_limit:
        return None
    message = f"{run.crashes} workers in a row died with this run; it is not tried again by itself"
    return Block(error=ErrorRecord(type="CrashLoop", message=message))


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
