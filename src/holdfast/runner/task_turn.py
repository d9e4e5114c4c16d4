"""The turn of a task: a run with one step. There is no code to replay, so it needs no loop and no coroutine.

It does the same as `Turn` in a fraction of the time; a test compares the two. `Turn` handles a task whose history has
more than attempts at this one step, because the type was a workflow once or the run was forked with a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.checkpoint import Block, Checkpoint, Finish, Next, Suspend
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, HoldfastError, InvalidRequest, Unreadable
from holdfast.core.model import Entry, EntryKind, EntryState, Lease, Wait
from holdfast.core.states import RunState
from holdfast.runner.definition import Task
from holdfast.runner.history import History
from holdfast.runner.inbox import Inbox
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import AttemptEnd, Settled, StepCall, TryAgain, charge_crashes, judge_attempt
from holdfast.runner.pending_checkpoint import PendingCheckpoint
from holdfast.runner.run_turn import RunTurn, Standstill, TimeLimits, blocked, cancelled, crash_loop

_POSITION = 1
"""Position of the only fact of a task."""


class TaskTurn:
    """The turn of a task run that this worker holds. `RunTurn` describes its methods."""

    is_overdue = False
    due_since: Micros | None = None
    unfinished = 0
    survivors: Sequence[str] = ()

    def __init__(
        self, lease: Lease, definition: Task[Any, Any], *, seen: int | None = None, has_database: bool = True
    ) -> None:
        run = lease.run
        self.definition = definition
        self.has_database = has_database
        self.entries = lease.entries
        self.outcome: Finish | Block | None = None
        self.stamp: Micros = run.first_claimed_at or run.created_at
        self.inbox = Inbox(lease.arrivals, run.arrivals if seen is None else seen)  # nothing in it is ever read
        self._open = OpenOperations(self.inbox)
        self.pending = PendingCheckpoint(run, self._open)
        self._limits = TimeLimits.of(run)

    @staticmethod
    def suits(definition: Task[Any, Any], entries: Sequence[Entry]) -> bool:
        """True if a history has only attempts at the step of the task."""
        return not entries or (len(entries) == 1 and _is_attempt(entries[0], definition.type))

    # Driving

    def begin(self, now: Micros) -> Standstill:
        self.outcome = crash_loop(self.pending.run, self.definition)
        if self.outcome is None:
            try:
                run = self.pending.run
                self._ask(self.definition.call(run.input, run.options.max_attempts))
            except Unreadable as error:
                self._block(error, now)
            except InvalidRequest as error:
                self._refuse(error, now)
        return self.settle(now)

    def _ask(self, call: StepCall) -> None:
        for attempt in self.entries:
            call.resume(attempt)
        call.asked_at = self.stamp
        self._open.add(call, is_recorded=False)

    def _refuse(self, error: InvalidRequest, now: Micros) -> None:
        """Fail a task whose payload does not fit the function. Block it if it has attempts: the function changed."""
        if self.entries:
            self._block(History(self.pending.run, self.entries, self._open).misread(str(error)), now)
        else:
            self.outcome = Finish(state=RunState.FAILED, error=ErrorRecord.of(error))

    def _block(self, error: HoldfastError, now: Micros) -> None:
        self.pending.drop_requests()
        self.outcome = blocked(self.pending.run, self.definition, error, now)

    def settle(self, now: Micros) -> Standstill:
        if self.outcome is None and (why := self._exceeded(now)) is not None:
            self.outcome = cancelled(why)
        if self.outcome is None and self.pending.crashes:
            self._charge_crashes(now)
        return self.standstill(now)

    def _exceeded(self, now: Micros) -> str | None:
        if self._limits is None:
            return None
        return self._limits.exceeded(now, self._open, fed=self.pending.fed_count, stamp=self.stamp)

    def standstill(self, now: Micros) -> Standstill:
        if self.outcome is not None:
            return Standstill(at=now, end=self.outcome)
        frontier = self._open.frontier(now, self.pending.committed_count, may_carry=False)
        return Standstill(
            at=now,
            start=frontier.start,
            may_suspend=frontier.is_waiting,
            must_write=self.pending.is_due(),
            wake_at=frontier.wake_at if self._limits is None else self._limits.earliest(frontier.wake_at),
        )

    # Facts

    def feed(self, call: StepCall, end: AttemptEnd, now: Micros) -> Standstill:
        if self.outcome is not None or not self._open.holds(call):
            return self.standstill(now)
        match judge_attempt(call, end):
            case Settled() as settled:
                self._settle_step(call, settled, now)
            case TryAgain(error):
                self._put_off(call, error, now)
        return self.settle(now)

    def _settle_step(self, call: StepCall, settled: Settled, now: Micros) -> None:
        """End the task with the outcome of its step."""
        self.stamp = max(self.stamp, now)
        entry = call.settled(settled.state, _POSITION, self.stamp, result=settled.result, error=settled.error)
        self.pending.add(entry, is_lazy=call.options.ephemeral)
        self._open.remove(call)
        if entry.error is None:
            self.outcome = Finish(state=RunState.SUCCEEDED, result=entry.result)
        else:
            error = replace(entry.error, locations=(entry.location,))
            self.outcome = Finish(state=RunState.FAILED, error=error)

    def _put_off(self, call: StepCall, error: ErrorRecord | None, now: Micros) -> None:
        """Let the step wait for its next attempt."""
        self._open.retried(call)
        self.stamp = max(self.stamp, now)
        call.retry_at = self.stamp + call.options.retry.pause(call.attempts)
        self.pending.add(call.retrying(error))
        call.after = self.pending.fed_count

    def _charge_crashes(self, now: Micros) -> None:
        """Charge the step with the crashes of workers that held this run, once."""
        crashes, self.pending.crashes = self.pending.crashes, 0
        for call in self._open.due_steps(now):
            match charge_crashes(call, crashes):
                case Settled() as settled:
                    self._settle_step(call, settled, now)
                case TryAgain(error):
                    self.pending.add(call.retrying(error), is_lazy=True)

    # Steps and checkpoints

    def started(self, call: StepCall, now: Micros) -> None:
        self._open.started(call)
        call.started_at = call.started_at or now

    def take_checkpoint(self, next: Next, now: Micros) -> Checkpoint:
        limits: tuple[Wait, ...] = ()
        if isinstance(next, Suspend) and self._limits is not None:
            limits = self._limits.waits(now, fed=self.pending.fed_count, stamp=self.stamp)
        checkpoint = self.pending.take(next, self.inbox.seen, limits)
        if checkpoint.waits is not None:
            self.inbox.registered(checkpoint.waits)
        return checkpoint

    def committed(self, now: Micros) -> Standstill:
        self.pending.committed()
        return self.standstill(now)

    # Reports of step bodies

    def publish(self, name: str, value: str) -> None:
        self.pending.publish(name, value)

    def beat(self, number: int) -> None:
        self.pending.beat = number

    # Leaving

    def remember(self, written: Checkpoint) -> None:
        self.entries = written.entries or self.entries

    def inherit(self, old: RunTurn) -> None:
        self.pending.inherit(old.pending)
        self.inbox.inherit(old.inbox)

    def evict(self) -> None:
        self._open.clear()


def _is_attempt(entry: Entry, location: str) -> bool:
    return entry.location == location and entry.kind is EntryKind.STEP and entry.state is EntryState.RETRYING
