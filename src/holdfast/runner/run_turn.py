"""What all turns share: the protocol with the driver, the limits of a run's time, and how errors end a turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, assert_never

import msgspec

from holdfast.core import rules
from holdfast.core.checkpoint import Block, Checkpoint, ContinueAsNew, Finish, Next, StartRollback, Suspend
from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Arrival, Entry, Lease, Run, Wait, WaitKind
from holdfast.core.states import RunState
from holdfast.runner.history import History, ShortHistory
from holdfast.runner.inbox import Inbox
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import (
    AttemptEnd,
    Operation,
    Settled,
    StepCall,
    TryAgain,
    entry_of_arrivals,
    entry_of_deadline,
    judge_attempt,
)
from holdfast.runner.pending_checkpoint import PendingCheckpoint

TurnEnd = Finish | StartRollback | ContinueAsNew | Block
"""The end of a turn whose code has ended or cannot continue."""


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions of a turn to its driver, as of the instant `at`.

    The driver executes the steps in `start` and calls `mark_started` for each. It drops the bodies at the locations in
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


class Executed(Protocol):
    """The definition of a run, as far as its end depends on it: a `Definition` or a `FlowType`."""

    @property
    def reason(self) -> ErrorRecord | None: ...

    @property
    def crash_limit(self) -> int: ...


class RunTurn(ABC):
    """The turn of a run that this worker holds, for its driver: that of a workflow, a task or a flow.

    The driver keeps three rules. It executes a step only if a standstill says so. It writes checkpoints in the order
    in which it took them, one at a time. It drops the turn if the store refuses a checkpoint.
    """

    _history: History | ShortHistory

    def __init__(self, lease: Lease, definition: Executed, *, seen: int | None, has_database: bool) -> None:
        run = lease.run
        self.definition = definition
        self.has_database = has_database
        self.outcome: TurnEnd | None = None
        self.due_since: Micros | None = None
        """Instant of the first arrival or deadline fed. The run could have been claimed since then."""
        self.is_overdue = False
        """True if a timeout is due but waits for the next checkpoint, whose answer may bring an earlier arrival."""
        self.inbox = Inbox(lease.arrivals, run.arrivals if seen is None else seen)
        self._open = OpenOperations(self.inbox)
        self.pending = PendingCheckpoint(run, self._open)
        self._limits = TimeLimits.of(run)

    @abstractmethod
    def begin(self, now: Micros) -> Standstill:
        """Start or resume the run, and run to the first standstill."""

    @abstractmethod
    def settle(self, now: Micros) -> Standstill:
        """Feed everything that is due by `now`, and run to the next standstill."""

    @abstractmethod
    def standstill(self, now: Micros) -> Standstill:
        """Return the current standstill without feeding anything."""

    @property
    def stamp(self) -> Micros:
        """The instant of the last fact."""
        return self._history.stamp

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of the lease, and those added by `remember`."""
        return self._history.entries

    # Ends

    def _end_crash_loop(self) -> None:
        """Block a run with too many worker crashes in a row."""
        run = self.pending.run
        if run.crashes >= self.definition.crash_limit:
            message = f"{run.crashes} workers in a row died with this run; it is not tried again by itself"
            self.outcome = Block(error=ErrorRecord(type="CrashLoop", message=message))

    def _block(self, error: BaseException, now: Micros) -> Block:
        """Let the next checkpoint block the run. It writes all fed facts, but no requests made since the last one.

        Workers retry a blocked run later, because a fixed deploy heals it.
        """
        run = self.pending.run
        self.pending.drop_requests()
        count, pause = rules.blocked_retry(run.error if run.error != self.definition.reason else None)
        self.outcome = Block(error=ErrorRecord.of(error, attempts=count), retry_at=now + pause)
        return self.outcome

    def _exceeded(self, now: Micros) -> Finish | None:
        """Return the end of the run if it exceeded one of its time limits."""
        if self._limits is None:
            return None
        why = self._limits.exceeded(now, self._open, fed=self.pending.fed_count, stamp=self.stamp)
        return None if why is None else Finish(state=RunState.CANCELLED, error=rules.cancellation(why))

    # Arrivals and deadlines

    def _pop_due(self, now: Micros) -> tuple[Arrival | None, Operation] | None:
        """Remove and return the first arrival or deadline that is due, by its instant.

        An operation that must wait for the next checkpoint also holds back everything later.
        """
        if not self.inbox.has_due(now):
            return None
        late = self.inbox.overdue()
        self.is_overdue = late is not None and self._must_wait(late)
        return None if self.is_overdue else self.inbox.pop_due()

    def _must_wait(self, late: Operation) -> bool:
        """True if an operation that is due must not be fed before the next checkpoint."""
        return self.pending.registration.must_come_first(late)

    def _entry_of(self, arrival: Arrival | None, operation: Operation, position: int) -> Entry:
        """Return the entry of an arrival, which is consumed, or of the deadline of an operation."""
        if arrival is None:
            return entry_of_deadline(operation, position, self.stamp)
        taken = self.inbox.take(arrival, operation)
        self.pending.consume(one.number for one in taken)
        return entry_of_arrivals(operation, taken, position, self.stamp)

    # Steps

    def mark_started(self, call: StepCall, now: Micros) -> None:
        """Note that the driver executes a step of a standstill."""
        self._open.mark_started(call)
        call.started_at = call.started_at or now

    def feed(self, call: StepCall, end: AttemptEnd, now: Micros) -> Standstill:
        """Feed the end of an attempt at a step, and run to the next standstill."""
        if self.outcome is not None or not self._open.holds(call):
            return self.standstill(now)
        match judge_attempt(call, end):
            case Settled() as settled:
                self._settle_step(call, settled, now)
            case TryAgain(error):
                self._postpone(call, error, now)
            case unknown:
                assert_never(unknown)
        return self.settle(now)

    @abstractmethod
    def _settle_step(self, call: StepCall, settled: Settled, now: Micros) -> None:
        """Record the outcome of a step and feed it to the code."""

    def _postpone(self, call: StepCall, error: ErrorRecord | None, now: Micros) -> None:
        """Let a step wait for its next attempt."""
        self._open.mark_waiting(call)
        self._history.stamp = max(self.stamp, now)
        call.retry_at = self.stamp + call.options.retry.pause(call.attempts)
        self.pending.add(call.retrying(error))
        call.after = self.pending.fed_count

    # Checkpoints

    def take_checkpoint(self, next: Next, now: Micros) -> Checkpoint:
        """Return a checkpoint of everything pending. Facts that are fed later go into the next checkpoint."""
        limits: tuple[Wait, ...] = ()
        if isinstance(next, Suspend) and self._limits is not None:
            limits = self._limits.waits(now, fed=self.pending.fed_count, stamp=self.stamp)
        checkpoint = self.pending.take(next, self.inbox.seen, limits)
        if checkpoint.waits is not None:
            self.inbox.register(checkpoint.waits)
        return checkpoint

    def mark_committed(self, now: Micros) -> Standstill:
        """Note that the checkpoint taken last is in the store."""
        self.pending.mark_committed()
        return self.standstill(now)

    # Reports of step bodies

    def publish(self, name: str, value: str) -> None:
        """Set a named value that other processes can read."""
        self.pending.publish(name, value)

    def beat(self, number: int) -> None:
        """Let the next checkpoint record a heartbeat of a body. `number` counts the heartbeats under this lease."""
        self.pending.beat = number

    # Leaving

    @property
    def unfinished(self) -> int:
        """The number of tasks of the code that have not ended."""
        return 0

    @property
    def survivors(self) -> Sequence[str]:
        """Lines of code that swallowed every attempt to close it. Known after `evict`."""
        return ()

    def remember(self, written: Checkpoint) -> None:
        """Add a written checkpoint to the history, for a turn that will take over from this one."""
        self._history.remember(written.entries)

    def inherit(self, old: RunTurn) -> None:
        """Take over what an earlier turn of the same lease knows about the store, besides the history."""
        self.pending.inherit(old.pending)
        self.inbox.inherit(old.inbox)

    def evict(self) -> None:
        """Close every coroutine, so that the run leaves memory. Requests of code that still runs are ignored."""
        self._open.clear()


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
