"""A turn: one stretch of progress of a run inside a worker. Facts go in, checkpoints come out; no I/O.

The workflow's coroutine runs on its own deterministic loop. A turn feeds it one fact at a time: a recorded entry, a
step's result, an arrival or a due timer. It lets the code run to a standstill, and returns what the driver must do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.core import rules
from holdfast.core.checkpoint import Checkpoint, ContinueAsNew, Finish, Hold, Next, StartRollback
from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import (
    ErrorRecord,
    HistoryDiverged,
    InvalidRequest,
    Unreadable,
    WorkflowViolation,
)
from holdfast.core.model import Arrival, Entry, Lease, WaitKind
from holdfast.core.states import RunState
from holdfast.runner.code_requests import CodeRequests
from holdfast.runner.definition import Definition, error_of
from holdfast.runner.history import History
from holdfast.runner.operation import (
    Attempt,
    ChildGroup,
    Mark,
    Operation,
    Reception,
    Settled,
    Sleep,
    StepCall,
    TryAgain,
    TxCall,
    charge_crashes,
)
from holdfast.runner.run_turn import (
    RunTurn,
    Standstill,
    TurnEnd,
)
from holdfast.runner.step_info import StepInfo
from holdfast.runner.violation import explain_foreign, is_slip

_HOLD = Hold()


class Turn(RunTurn):
    """The turn of a workflow run, or of one that rolls back. `RunTurn` describes its methods."""

    definition: Definition
    _history: History

    def __init__(
        self, lease: Lease, definition: Definition, *, seen: int | None = None, has_database: bool = True
    ) -> None:
        super().__init__(lease, definition, seen=seen, has_database=has_database)
        self._history = self._history_of(lease)
        self._requests = CodeRequests(
            lease.run, definition, self._history, self._open, self.pending, has_database=has_database
        )
        self._loop = self._requests.loop
        self.inbox.restore_cursors(self._history)
        self._root: asyncio.Task[Any] | None = None
        self._is_spinning = False
        self._used_up: deque[tuple[StepCall, Settled]] = deque()
        """Steps whose attempts were used up by worker crashes. Their failure is not fed yet."""

    def _history_of(self, lease: Lease) -> History:
        return History(
            lease.run, lease.entries, self._open, is_strict=self.definition.is_strict, hints=self.definition.hints
        )

    # Driving

    def begin(self, now: Micros) -> Standstill:
        self._end_crash_loop()
        if self.outcome is None:
            self._spawn(now)
        return self.settle(now)

    def _spawn(self, now: Micros) -> None:
        """Start the workflow and let it run to its first standstill."""
        try:
            root = self.definition.begin(self._requests.context, self.pending.run.input)
        except (Unreadable, HistoryDiverged) as error:
            self._block(error, now)
        except InvalidRequest as error:
            self._refuse(error, now)
        else:
            self._root = self._loop.spawn(root)
            self._loop.drive()

    def _refuse(self, error: InvalidRequest, now: Micros) -> None:
        """Fail a run that was started with a wrong payload.

        A run that has a history is blocked instead: its payload fitted the code once, and may fit again.
        """
        if self._history:
            self._block(self._history.misread(str(error)), now)
        else:
            self.outcome = Finish(state=RunState.FAILED, error=ErrorRecord.of(error))

    def settle(self, now: Micros) -> Standstill:
        history = self._history
        while self.outcome is None:
            self.is_overdue = False
            if self._is_over():
                self.outcome = self._over(now)
            elif history.to_replay:
                self._replay_next()
            elif history.must_follow:
                history.check_followed()
            elif self._limits is not None and (end := self._exceeded(now)) is not None:
                self.outcome = self._undone_first(end)
            elif self.inbox.awaited and (due := self._pop_due(now)) is not None:
                self._feed_due(*due, now)
            elif self._used_up:
                self._feed_used_up(*self._used_up.popleft(), now)
            elif not self.pending.crashes or not self._charge_crashes(now):
                if history.unreached or not self._open.by_location:
                    self._check_stuck(now)
                break
        return self.standstill(now)

    def standstill(self, now: Micros) -> Standstill:
        abandoned: Sequence[str] = ()
        if self._requests.abandoned:
            abandoned, self._requests.abandoned = self._requests.abandoned, []
        if self.outcome is not None:
            return Standstill(at=now, abandon=abandoned, end=self.outcome)
        pending, limits = self.pending, self._limits
        # A transaction is a checkpoint, so it can carry only what fits into one.
        frontier = self._open.frontier(now, pending.committed_count, may_carry=pending.fits_one)
        wake_at = frontier.wake_at if limits is None else limits.earliest(frontier.wake_at)
        return Standstill(
            at=now,
            start=frontier.start,
            abandon=abandoned,
            may_suspend=frontier.is_waiting and not self.is_overdue,
            must_write=pending.is_due(),
            # An overdue operation waits for the answer to the next checkpoint, not for time to pass.
            wake_at=None if self.is_overdue else wake_at,
            child_count=frontier.child_count,
        )

    # Facts

    def feed_committed(self, call: TxCall, entry: Entry, now: Micros) -> Standstill:
        """Feed the entry of a committed transaction. Nothing was fed since it began, so it has the next position."""
        if self.outcome is not None or not self._open.holds(call):
            return self.standstill(now)
        position = self._history.place_fact(entry.finished_at or now)
        assert position == entry.position, f"{call.location} was recorded at {entry.position}, not {position}"
        self._history.has_undo = self._history.has_undo or entry.has_undo
        self._feed_entry(call, entry)
        return self.settle(now)

    def _settle_step(self, call: StepCall, settled: Settled, now: Micros) -> None:
        position = self._history.place_fact(now)
        entry = call.settled(settled.state, position, self._history.stamp, result=settled.result, error=settled.error)
        if entry.has_undo:
            self._history.has_undo = True
        self.pending.add(entry, is_lazy=call.options.ephemeral)
        self._feed_entry(call, entry)

    def _charge_crashes(self, now: Micros) -> bool:
        """Charge the steps that may have been executing with the crashes of workers that held this run, once.

        Returns True if that used up the attempts of a step. Such steps are fed one at a time: recorded facts that the
        code asks for after the first of them come before the next one, as in a replay.
        """
        crashes, self.pending.crashes = self.pending.crashes, 0
        for call in self._open.due_steps(now):
            match charge_crashes(call, crashes):
                case Settled() as settled:
                    self._used_up.append((call, settled))
                case TryAgain(error):
                    self.pending.add(call.retrying(error), is_lazy=True)
        return bool(self._used_up)

    def _feed_used_up(self, call: StepCall, settled: Settled, now: Micros) -> None:
        """Feed the failure of a step that has no attempts left, unless the code has withdrawn the step meanwhile."""
        if self._open.holds(call):
            self._settle_step(call, settled, now)

    def _must_wait(self, late: Operation) -> bool:
        # The mark of a loop that does nothing but count must not occupy the worker.
        if isinstance(late, Mark):
            return self._is_spinning and late.after > self.pending.committed_count
        return super()._must_wait(late)

    def _feed_due(self, arrival: Arrival | None, operation: Operation, now: Micros) -> None:
        """Feed an arrival to the operation that waits for it, or feed the deadline of an operation."""
        is_mark = isinstance(operation, Mark)
        # A mark follows from recorded facts, so nothing has to wait for it, unless marks are all that happens. It also
        # has the time of the last fact: if it is lost, its repetition is the same.
        is_lazy = is_mark and not self._is_spinning
        if self.pending.crashes and not is_lazy:
            # A step that this fact leads to starts only after the fact is committed. So it cannot have been executing
            # when the worker died, and only the steps that are open now are charged.
            self._charge_crashes(now)
        entry = self._entry_of(arrival, operation, self._history.place_fact(self.stamp if is_lazy else now))
        self.pending.add(entry, is_lazy=is_lazy)
        if is_mark:
            self._history.remember([entry])
            self.inbox.keep_cursors(self._history, self.pending)
        self._feed_entry(operation, entry)
        if self.due_since is None and not (isinstance(operation, ChildGroup) and not operation.is_complete):
            self.due_since = operation.deadline if arrival is None else arrival.at

    def _replay_next(self) -> None:
        """Feed the recorded fact with the lowest position among those that the code has asked for."""
        history = self._history
        operation, entry = history.pop_replay()
        if history.diverged is not None:
            return
        if not self._open.holds(operation):
            history.check_withdrawn(entry)
            return
        history.mark_fed(entry)
        # After a rewind to this entry, time continues from the rewind (`retry_at`). So the next wait has its full
        # time, and a wait that is already open has the time that it had left at this entry.
        then = max(history.stamp, entry.finished_at or 0)
        history.stamp = max(then, entry.retry_at or 0)
        if history.stamp > then:
            self.inbox.put_off(history.stamp - then)
        self._feed_entry(operation, entry)

    def _feed_entry(self, operation: Operation, entry: Entry) -> None:
        """Feed one fact to the code and let it run to a standstill."""
        if isinstance(operation, ChildGroup):
            operation.take(entry)
            if not operation.is_complete:
                return
        self._open.remove(operation)
        self._is_spinning = isinstance(operation, Mark)
        if isinstance(operation, Reception) and operation.wait_kind is WaitKind.EVENT and entry.ref is not None:
            self.inbox.note_event(operation.names[0], int(entry.ref))
        self._loop.now = self._history.stamp / SECOND
        future = operation.future
        if isinstance(operation, Sleep) and operation.fire is not None:
            self._loop.drive(operation.fire)
        elif future is not None and not future.done():
            self._loop.drive(future.set_result, entry)

    # Judging

    def _is_over(self) -> bool:
        return (
            self._root is None
            or self._root.done()
            or self._requests.continued is not None
            or self._loop.system_exit is not None
            or self._loop.violation is not None
            or self._history.diverged is not None
        )

    def _over(self, now: Micros) -> TurnEnd:
        """Return the outcome of a run whose code can go no further."""
        violation = self._loop.violation or self._history.diverged
        if violation is not None:
            return self._block(violation, now)
        if self._loop.system_exit is not None:
            failed = Finish(state=RunState.FAILED, error=ErrorRecord.of(self._loop.system_exit))
            return self._undone_first(failed)
        assert self._root is not None
        return self._ended(self._root, now)

    def _ended(self, root: asyncio.Task[Any], now: Micros) -> TurnEnd:
        error = error_of(root) if root.done() else None
        if error is not None and (violation := explain_foreign(error)) is not None:
            return self._block(violation, now)
        if isinstance(error, Unreadable):  # a record was edited by hand; once it is repaired, the run continues
            return self._block(error, now)
        if self._history.unreached:
            how = "raised" if error is not None else "finished"
            return self._block(self._history.diverge(f"the code {how}, but the history continues", is_over=True), now)
        if self._requests.continued is not None:
            return self._continue_as_new(self._requests.continued)
        if error is not None and is_slip(error, self.definition.block_on):
            return self._block(error, now)
        end = self.definition.finish(root, now)
        return self._undone_first(end) if isinstance(end, Finish) else end

    def _undone_first(self, end: Finish) -> Finish | StartRollback:
        """Return the end of the run, or the rollback that comes first if it did not succeed and has steps to undo."""
        if end.state is RunState.SUCCEEDED or not self._history.has_undo:
            return end
        return StartRollback(end=end.state, error=end.error or ErrorRecord(type="Unknown", message=""))

    def _continue_as_new(self, payload: str) -> ContinueAsNew:
        """Begin the next generation. Only the event cursors of the history are kept."""
        self.pending.entries.clear()
        self.inbox.keep_cursors(self._history, self.pending, is_anew=True)
        return ContinueAsNew(payload=payload)

    def _check_stuck(self, now: Micros) -> None:
        """Block a run that would stand still forever, or that can only wait while its history continues."""
        if not self._open.by_location:
            where = "; ".join(self._loop.standstill_report()) or "nowhere"
            message = f"the workflow waits for something that can never come ({where}); it awaits nothing durable"
            self._block(WorkflowViolation(message), now)
        elif not self._open.has_steps:
            self._block(self._history.diverge("the code can only wait now, but the history continues"), now)

    # Steps and checkpoints

    def attempt(self, call: TxCall) -> Attempt:
        """Return the transaction attempt that the store executes together with the checkpoint taken last."""
        run = self.pending.run
        info = StepInfo(run.id, run.generation, call.location, call.attempts + 1, round=call.round)
        return Attempt(call, info, self._history.upcoming, self._history.stamp)

    def take_checkpoint(self, next: Next, now: Micros) -> Checkpoint:
        # Continue-as-new drops the entries of this generation, so it must write all children at once.
        if not self.pending.fits_one and not isinstance(next, ContinueAsNew):
            next = _HOLD
        if isinstance(next, StartRollback):
            self.pending.add(rules.rollback_entry(next, self._history.next_position(), self.stamp))
        return super().take_checkpoint(next, now)

    # Reports of step bodies

    def publish(self, name: str, value: str) -> None:
        self._requests.publish(name, value)

    # Leaving

    def remember(self, written: Checkpoint) -> None:
        super().remember(written)
        self._history.forget(written.pruned)

    @property
    def unfinished(self) -> int:
        return len(self._loop.unfinished)

    @property
    def survivors(self) -> Sequence[str]:
        return self._loop.survivors

    def evict(self) -> None:
        if self._loop.is_evicting:
            return  # the run has left memory already
        if self._root is not None and self._root.done() and not self._root.cancelled():
            self._root.exception()  # so that asyncio does not log it: it is recorded, or a violation came first
        self._requests.evict(is_over=isinstance(self.outcome, Finish))
        super().evict()
