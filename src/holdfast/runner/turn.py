"""A turn: one stretch of progress of a run inside a worker. Facts go in, a checkpoint comes out; no I/O.

The workflow's coroutine lives on its own deterministic loop. A turn feeds it one fact at a time (a recorded
entry, a step's result, an arrival, a due timer), lets it run to a standstill, and gathers what it asked for.
Whoever drives a turn must keep three rules: execute a step only when `startable` offers it, write checkpoints
in order, and drop the turn if one is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.core.checkpoint import Checkpoint, ContinueAsNew, Finish
from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import ErrorRecord, HistoryDiverged, InvalidRequest, Unreadable, WorkflowViolation
from holdfast.core.model import Arrival, Entry, Lease, WaitKind
from holdfast.core.states import RunState
from holdfast.runner.asking import Asking
from holdfast.runner.history import History
from holdfast.runner.inbox import Inbox
from holdfast.runner.operation import (
    ChildGroup,
    Mark,
    Operation,
    Reception,
    Sleep,
    StepCall,
    entry_of_arrivals,
    entry_of_deadline,
)
from holdfast.runner.outcome import error_of
from holdfast.runner.registry import Definition
from holdfast.runner.step_info import StepInfo
from holdfast.runner.stepping import Outcome
from holdfast.runner.transaction import Attempt, TxCall
from holdfast.runner.violation import explain_foreign


class Turn(Asking):
    """The live side of one held run, as its driver sees it."""

    def __init__(
        self, lease: Lease, definition: Definition, *, seen: int | None = None, has_database: bool = True
    ) -> None:
        inbox = Inbox(lease.arrivals, lease.run.arrivals if seen is None else seen)
        super().__init__(lease, definition, inbox, has_database=has_database)
        self._root: asyncio.Task[Any] | None = None
        self._is_spinning = False

    # Driving

    def begin(self, now: Micros) -> None:
        """Start the workflow, replay what is recorded and go on to the first standstill."""
        self.outcome = self._crash_loop()
        if self.outcome is not None:
            return
        try:
            root = self.definition.begin(self.context, self.run.input)
        except (Unreadable, HistoryDiverged) as error:
            self.outcome = self._blocked(error, now)
            return
        except InvalidRequest as error:
            # A run that never began was started wrongly; one that did fitted the code once, and may again.
            has_begun = bool(self._history)
            refused = Finish(state=RunState.FAILED, error=ErrorRecord.of(error))
            self.outcome = self._blocked(self._history.misread(str(error)), now) if has_begun else refused
            return
        self._root = self.loop.spawn(root)
        self.loop.drive()
        self.settle(now)

    def settle(self, now: Micros) -> None:
        """Feed what is recorded, then what has arrived or is due by `now`, until nothing more can be fed."""
        while self.outcome is None and not self._is_over():
            if self._history.to_replay:
                self._replay_next()
            elif self._history.must_follow:
                self._history.check_followed()
            elif (why := self._expired(now)) is not None:
                self.outcome = self._cancelled(why)
                return
            elif (due := self._pop_due(now)) is not None:
                self._feed_due(*due, now)
            elif not self._charge_crashes(now):
                if self._history.has_unreached or not self._asked:
                    self.outcome = self._stuck(now)
                return
        if self.outcome is None:
            self.outcome = self._over(now)

    def feed_committed(self, call: TxCall, entry: Entry, now: Micros) -> None:
        """A transaction is committed, and its entry with it. Nothing was fed since it began: it has the next place."""
        if self._is_open(call):
            position = self._history.next_position()
            assert position == entry.position, f"{call.location} was recorded at {entry.position}, not {position}"
            self._is_new = True
            self._has_undo = self._has_undo or entry.has_undo
            self._stamp(entry.finished_at or now)
            self._feed(call, entry)
            self.settle(now)

    def _pop_due(self, now: Micros) -> tuple[Arrival | None, Operation] | None:
        """What has arrived or is due, by its instant.

        Something that must wait for the next checkpoint holds back all that is later, too.
        """
        self.is_overdue = False
        if not self.inbox.has_due(now):
            return None
        late = self.inbox.overdue()
        self.is_overdue = late is not None and self._must_wait(late)
        return None if self.is_overdue else self.inbox.pop_due()

    def _must_wait(self, late: Operation) -> bool:
        """Whether an operation whose time has come must not be told so before the next checkpoint.

        A wait for an event: the store has to know of it first, as an event may have come before its deadline, and
        nobody else could tell. The mark of a loop that does nothing but count: it must not keep the worker for itself.
        """
        if isinstance(late, Mark):
            return self._is_spinning and late.after > self._committed
        is_event = isinstance(late, Reception) and late.wait_kind is WaitKind.EVENT
        return is_event and not self._registration.knows(late)

    def _feed_due(self, arrival: Arrival | None, operation: Operation, now: Micros) -> None:
        """Feed an arrival to the operation that waits for it, or tell an operation that its time has come."""
        is_mark = isinstance(operation, Mark)
        # A mark follows from what is recorded already, and nothing has to wait for it; unless there is nothing else.
        # Hence it has the time of that, too: were it lost, its repetition would be the same.
        is_lazy = is_mark and not self._is_spinning
        stamp = self.stamp if is_lazy else self._stamp(now)
        position = self._history.next_position()
        self._is_new = True
        if arrival is not None:
            taken = self.inbox.take(arrival, operation)
            entry = entry_of_arrivals(operation, taken, position, stamp)
            self._gains.consume(one.number for one in taken)
        else:
            entry = entry_of_deadline(operation, position, stamp)
        self._fed += not is_lazy
        self._gains.add(entry, is_lazy=is_lazy)
        if is_mark:
            self._history.remember([entry])
            self.keep_cursors()
        self._feed(operation, entry)
        if self.due_since is None and not (isinstance(operation, ChildGroup) and not operation.is_complete):
            self.due_since = operation.deadline if arrival is None else arrival.at

    def _replay_next(self) -> None:
        operation, entry = self._history.pop_replay()
        if self._history.diverged is not None:
            return
        if not self._asked.holds(operation):
            self._history.withdrawn(entry)
            return
        self._history.passed(entry)
        # Who took the run back to here let time go on from then, so that what is awaited next has its full time, and
        # what is awaited already the time that it had left here.
        then = max(self.stamp, entry.finished_at or 0)
        self.stamp = max(then, entry.retry_at or 0)
        if self.stamp > then:
            self.inbox.put_off(self.stamp - then)
        self._feed(operation, entry)

    def _feed(self, operation: Operation, entry: Entry) -> None:
        """Hand one fact to the workflow and let it run until it can go no further."""
        if isinstance(operation, ChildGroup):
            operation.take(entry)
            if not operation.is_complete:
                return
        self._asked.remove(operation)
        self._is_spinning = isinstance(operation, Mark)
        if isinstance(operation, Reception) and operation.wait_kind is WaitKind.EVENT and entry.ref is not None:
            self.inbox.note_event(operation.names[0], int(entry.ref))
        self.loop.now = self.stamp / SECOND
        future = operation.future
        if isinstance(operation, Sleep) and operation.fire is not None:
            self.loop.drive(operation.fire)
        elif future is not None and not future.done():
            self.loop.drive(future.set_result, entry)

    # Judging

    def _is_over(self) -> bool:
        return (
            self._root is None
            or self._root.done()
            or self._renewal is not None
            or self.loop.system_exit is not None
            or self.loop.violation is not None
            or self._history.diverged is not None
        )

    def _over(self, now: Micros) -> Outcome:
        """What has become of a run that goes no further."""
        violation = self.loop.violation or self._history.diverged
        if violation is not None:
            return self._blocked(violation, now)
        if self.loop.system_exit is not None:
            return self._finished(Finish(state=RunState.FAILED, error=ErrorRecord.of(self.loop.system_exit)))
        assert self._root is not None
        return self._ended(self._root, now)

    def _stuck(self, now: Micros) -> Outcome | None:
        """The block of a run that stands still for ever, or at odds with its history."""
        if not self._asked:
            where = "; ".join(self.loop.standstill_report()) or "nowhere"
            message = f"the workflow waits for something that can never come ({where}); it awaits nothing durable"
            return self._blocked(WorkflowViolation(message), now)
        if not self._asked.has_steps:
            return self._blocked(self._history.diverge("the code can only wait now, but the history goes on"), now)
        return None

    def _ended(self, root: asyncio.Task[Any], now: Micros) -> Outcome:
        error = error_of(root) if root.done() else None
        if error is not None and (violation := explain_foreign(error)) is not None:
            return self._blocked(violation, now)
        if isinstance(error, Unreadable):  # what is recorded was edited by hand; mended, the run goes on
            return self._blocked(error, now)
        if self._history.has_unreached:
            how = "raised" if error is not None else "finished"
            return self._blocked(self._history.diverge(f"the code {how}, but the history goes on", is_over=True), now)
        if self._renewal is not None:
            return self._renewed(self._renewal)
        return self._finished(self.definition.finish(root, now))

    def _renewed(self, payload: str) -> ContinueAsNew:
        """The next generation begins; of the history only goes on which events the run has had."""
        self._gains.entries.clear()
        self._history = History(self.run, (), self._asked)
        self.keep_cursors()
        return ContinueAsNew(payload=payload)

    # What is wanted

    def startable(self, now: Micros) -> list[StepCall]:
        return [] if self._history.to_replay else super().startable(now)

    def attempt(self, call: TxCall) -> Attempt:
        """What the store is to carry out for a transaction, together with the checkpoint taken last."""
        info = StepInfo(self.run.id, self.run.generation, call.location, call.attempts + 1, round=call.round)
        return Attempt(call, info, self._history.upcoming, self.stamp)

    @property
    def unfinished(self) -> int:
        return len(self.loop.unfinished)

    def _next_position(self) -> int:
        return self._history.next_position()

    # Leaving

    def remember(self, written: Checkpoint) -> None:
        """Bring the history up to what was written, for a turn that will take over from this one."""
        self._history.remember(written.entries)
        self._history.forget(written.pruned)

    @property
    def history(self) -> tuple[Entry, ...]:
        """All entries this turn began with or was told to remember."""
        return self._history.entries

    @property
    def survivors(self) -> Sequence[str]:
        return self.loop.survivors

    def evict(self) -> None:
        """Leave memory: close every coroutine; nothing they still do counts."""
        if self.loop.is_evicting:
            return  # it has left already
        if self._root is not None and self._root.done() and not self._root.cancelled():
            self._root.exception()  # it was looked at, or does not matter: a violation came before it
        self.loop.evict(is_over=isinstance(self.outcome, Finish))
        self._timers.clear()
        super().evict()
        # Cuts the circle between a turn and what its code sees of it: a run that is over is gone at once, where the
        # collector would first have to find all that it was made of.
        del self.context
