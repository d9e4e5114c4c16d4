"""The turn of a task: a run with one step. There is no code to replay, so it needs no loop and no coroutine.

It does the same as `Turn` in a fraction of the time; a test compares the two. `Turn` handles a task whose history has
more than attempts at this one step, because the type was a workflow once or the run was forked with a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, Finish
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, InvalidRequest, Unreadable
from holdfast.core.model import Entry, EntryKind, EntryState, Lease
from holdfast.core.states import RunState
from holdfast.runner.definition import Task
from holdfast.runner.history import History, ShortHistory
from holdfast.runner.operation import Settled, StepCall, TryAgain, charge_crashes
from holdfast.runner.run_turn import RunTurn, Standstill


class TaskTurn(RunTurn):
    """The turn of a task run. `RunTurn` describes its methods. Nothing in its inbox is ever read."""

    definition: Task[Any, Any]
    _history: ShortHistory

    def __init__(
        self, lease: Lease, definition: Task[Any, Any], *, seen: int | None = None, has_database: bool = True
    ) -> None:
        super().__init__(lease, definition, seen=seen, has_database=has_database)
        self._history = ShortHistory(lease.entries, lease.run.first_claimed_at or lease.run.created_at)

    @staticmethod
    def suits(definition: Task[Any, Any], entries: Sequence[Entry]) -> bool:
        """True if a history has only attempts at the step of the task."""
        return not entries or (
            len(entries) == 1
            and entries[0].location == definition.type
            and entries[0].kind is EntryKind.STEP
            and entries[0].state is EntryState.RETRYING
        )

    # Driving

    def begin(self, now: Micros) -> Standstill:
        self._end_crash_loop()
        if self.outcome is None:
            try:
                run = self.pending.run
                call = self.definition.call(run.input, run.options.max_attempts)
                for attempt in self.entries:
                    call.resume(attempt)
                call.asked_at = self.stamp
                self._open.add(call, is_recorded=False)
            except Unreadable as error:
                self._block(error, now)
            except InvalidRequest as error:
                self._refuse(error, now)
        return self.settle(now)

    def _refuse(self, error: InvalidRequest, now: Micros) -> None:
        """Fail a task whose payload does not fit the function. Block it if it has attempts: the function changed."""
        if self.entries:
            self._block(History(self.pending.run, self.entries, self._open).misread(str(error)), now)
        else:
            self.outcome = Finish(state=RunState.FAILED, error=ErrorRecord.of(error))

    def settle(self, now: Micros) -> Standstill:
        if self.outcome is None and self._limits is not None:
            self.outcome = self._exceeded(now)
        if self.outcome is None and self.pending.crashes:
            self._charge_crashes(now)
        return self.standstill(now)

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

    def _settle_step(self, call: StepCall, settled: Settled, now: Micros) -> None:
        position = self._history.place_fact(now)
        entry = call.settled(settled.state, position, self.stamp, result=settled.result, error=settled.error)
        self.pending.add(entry, is_lazy=call.options.ephemeral)
        self._open.remove(call)
        if entry.error is None:
            self.outcome = Finish(state=RunState.SUCCEEDED, result=entry.result)
        else:
            error = replace(entry.error, locations=(entry.location,))
            self.outcome = Finish(state=RunState.FAILED, error=error)

    def _charge_crashes(self, now: Micros) -> None:
        """Charge the step with the crashes of workers that held this run, once."""
        crashes, self.pending.crashes = self.pending.crashes, 0
        for call in self._open.due_steps(now):
            match charge_crashes(call, crashes):
                case Settled() as settled:
                    self._settle_step(call, settled, now)
                case TryAgain(error):
                    self.pending.add(call.retrying(error), is_lazy=True)

    # Leaving

    def remember(self, written: Checkpoint) -> None:
        self._history = ShortHistory(written.entries or self.entries, self.stamp)
