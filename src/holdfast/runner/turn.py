"""A turn: one stretch of progress of a run inside a worker. Facts go in, a checkpoint comes out; no I/O.

The workflow's coroutine lives on its own deterministic loop. A turn feeds it one fact at a time (a recorded
entry, a step's result, an arrival, a due timer), lets it run to a standstill, and gathers what it asked for.
Whoever drives a turn must keep three rules: execute a step only when `startable` offers it, write checkpoints
in order, and drop the turn if one is refused.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Block, Checkpoint, Finish, Hold, Next, Release, Renew, TurnAround
from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import ErrorRecord, HistoryDiverged, HoldfastError, InvalidRequest, WorkflowViolation
from holdfast.core.model import Arrival, Entry, EntryState, Lease, Wait, WaitKind
from holdfast.core.retry import worker_lost
from holdfast.core.states import RunState
from holdfast.runner.asking import Asking
from holdfast.runner.gains import Gains
from holdfast.runner.history import History
from holdfast.runner.inbox import Inbox
from holdfast.runner.operation import (
    ChildGroup,
    Mark,
    Operation,
    Pause,
    Reception,
    StepCall,
    entry_of_arrivals,
    entry_of_deadline,
)
from holdfast.runner.outcome import error_of
from holdfast.runner.registration import Registration
from holdfast.runner.registry import Definition
from holdfast.runner.step_info import StepInfo
from holdfast.runner.transaction import Attempt, TxCall
from holdfast.runner.violation import explain_foreign

Outcome = Finish | TurnAround | Renew | Block

CHILDREN_AT_ONCE = 1_000
"""So many children are created by one checkpoint at most, so that no transaction is too long."""


class Turn(Asking):
    """The live side of one held run, as its driver sees it."""

    def __init__(
        self, lease: Lease, definition: Definition, *, inbox: Inbox | None = None, has_database: bool = True
    ) -> None:
        inbox = inbox or Inbox(lease.arrivals, lease.run.arrivals)
        super().__init__(lease, definition, inbox, has_database=has_database)
        self.outcome: Outcome | None = None
        self.due_since: Micros | None = None
        """The instant of the first thing that had come, or was due: since then the run could have been claimed."""

        self._root: asyncio.Task[Any] | None = None
        self._committed = 0
        self._crashes = lease.run.crashes
        self._has_undo = self._history.has_undo
        self._is_spinning = False
        self._registration = Registration(self._asked, is_first_lease=lease.run.token == 1)
        self._is_overdue = False

    # Driving

    def begin(self, now: Micros) -> None:
        """Start the workflow, replay what is recorded and go on to the first standstill."""
        if self.run.crashes >= self.definition.crash_limit:
            message = f"{self.run.crashes} workers in a row died with this run; it is not tried again by itself"
            self.outcome = Block(error=ErrorRecord(type="CrashLoop", message=message))
            return
        try:
            root = self.definition.begin(self.context, self.run.input)
        except InvalidRequest as error:
            # A run that never began was started wrongly; one that did fitted the code once, and may again.
            has_begun = bool(self._history)
            refused = Finish(state=RunState.FAILED, error=ErrorRecord.of(error))
            self.outcome = self._blocked(self._history.diverge(str(error)), now) if has_begun else refused
            return
        except HistoryDiverged as error:
            self.outcome = self._blocked(error, now)
            return
        self._root = self.loop.spawn(root)
        self.loop.drive()
        self.settle(now)

    def settle(self, now: Micros) -> None:
        """Feed what is recorded, then what has arrived or is due by `now`, until nothing more can be fed."""
        while self.outcome is None and not self._is_over():
            if self.definition.is_strict:
                self._history.check_step()
                if self._history.diverged is not None:
                    break
            if self._history.has_replay:
                self._replay_next()
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

    def feed_result(self, call: StepCall, value: Any, now: Micros) -> None:
        """An attempt at a step returned."""
        if not self._is_open(call):
            return
        what = f"result of step {call.location!r}"
        try:
            text, call.value = call.codec.store(value, what)
        except HoldfastError as error:
            self.feed_error(call, error, now)
            return
        call.attempts += 1
        self._settle_step(call, EntryState.DONE, now, result=text)

    def feed_error(self, call: StepCall, error: BaseException, now: Micros) -> None:
        """An attempt at a step raised: it is tried again later, or the failure becomes the step's outcome."""
        if self._is_open(call):
            call.attempts += 1
            may_retry = call.options.retry.allows(error, call.attempts)
            self._fail(call, ErrorRecord.of(error, attempts=call.attempts), now, may_retry=may_retry)

    def feed_timeout(self, call: StepCall, now: Micros) -> None:
        """An attempt at a step took too long. It may still be running, so by default there is no other."""
        if self._is_open(call):
            call.attempts += 1
            message = f"an attempt took longer than {call.options.timeout} s"
            may_retry = call.options.retry_timeout and call.attempts < call.options.retry.max_attempts
            record = ErrorRecord(type="StepTimeout", message=message, types=("TimeoutError",), attempts=call.attempts)
            self._fail(call, record, now, may_retry=may_retry)

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

    def _fail(self, call: StepCall, record: ErrorRecord, now: Micros, *, may_retry: bool) -> None:
        if not may_retry:
            self._settle_step(call, EntryState.FAILED, now, error=record)
            return
        self._asked.retried(call)
        call.retry_at = self._stamp(now) + call.options.retry.pause(call.attempts)
        call.after = self._fed = self._fed + 1
        self._gains.add(call.retrying(record))
        self.settle(now)

    def _settle_step(self, call: StepCall, state: EntryState, now: Micros, **outcome: Any) -> None:
        entry = call.settled(state, self._history.next_position(), self._stamp(now), **outcome)
        self._is_new = True
        self._has_undo = self._has_undo or entry.has_undo
        if not call.options.ephemeral:
            self._fed += 1
        self._gains.add(entry, is_lazy=call.options.ephemeral)
        self._feed(call, entry)
        self.settle(now)

    def _pop_due(self, now: Micros) -> tuple[Arrival | None, Operation] | None:
        """What has arrived or is due, by its instant.

        Something that must wait for the next checkpoint holds back all that is later, too.
        """
        late = self.inbox.overdue(now)
        self._is_overdue = late is not None and self._must_wait(late)
        return None if self._is_overdue else self.inbox.pop_due(now)

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
            self._gains.consumed += [one.number for one in taken]
            entry = entry_of_arrivals(operation, taken, position, stamp)
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
        if not self._asked.holds(operation):
            return  # cancelled before its turn came, as it was the first time
        self._history.passed(entry)
        # Who took the run back to here let time go on from then, so that what is awaited next has its full time.
        self.stamp = max(self.stamp, entry.finished_at or 0, entry.retry_at or 0)
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
        if isinstance(operation, Pause) and operation.fire is not None:
            self.loop.drive(operation.fire)
        elif future is not None and not future.done():
            self.loop.drive(lambda: future.set_result(entry))

    def _stamp(self, now: Micros) -> Micros:
        """The instant of the next fact: never earlier than the one before."""
        self.stamp = max(self.stamp, now)
        return self.stamp

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
        if self._history.has_unreached:
            how = "raised" if error is not None else "finished"
            return self._blocked(self._history.diverge(f"the code {how}, but the history goes on"), now)
        if self._renewal is not None:
            return self._renewed(self._renewal)
        return self._finished(self.definition.finish(root, now))

    def _finished(self, end: Outcome) -> Outcome:
        """The end; or, if there is something to undo and a reason to, the turn-around that precedes it."""
        if not isinstance(end, Finish) or end.state is RunState.SUCCEEDED or not self._has_undo:
            return end
        error = end.error or ErrorRecord(type="Unknown", message="")
        return TurnAround(end=end.state, error=error)

    def _renewed(self, payload: str) -> Renew:
        """The next generation begins; of the history only goes on which events the run has had."""
        self._gains.entries.clear()
        self._history = History(self.run, (), self._asked)
        self.keep_cursors()
        return Renew(payload=payload)

    def _expired(self, now: Micros) -> str | None:
        """Why the run has to be cancelled: it takes too long, or was suspended for too long without anything coming."""
        options = self.run.options
        if self.run.rollback is not None:
            return None
        if self.run.end_by is not None and now >= self.run.end_by:
            return f"it ran longer than its max_run of {(options.max_run or 0) / SECOND:g} s"
        since = self.run.suspended_at
        if options.max_suspend is None or since is None or now < since + options.max_suspend:
            return None
        is_same = self._fed == 0 and self.stamp <= since and self.inbox.overdue(now) is None
        if is_same and not self.inbox.has_due(now) and self._asked.is_waiting(now):
            return f"it was suspended longer than its max_suspend of {options.max_suspend / SECOND:g} s"
        return None

    def _cancelled(self, why: str) -> Outcome:
        return self._finished(Finish(state=RunState.CANCELLED, error=rules.cancellation(why)))

    def _blocked(self, error: HoldfastError, now: Micros) -> Block:
        """Commit nothing of this stretch; a fixed deploy heals the run when it is tried again."""
        self._gains = Gains()
        previous = self.run.error if self.run.error != self.definition.reason else None
        count, pause = rules.blocked_retry(previous)
        return Block(error=ErrorRecord.of(error, attempts=count), retry_at=now + pause)

    # What is wanted

    def startable(self, now: Micros) -> list[StepCall]:
        """The steps to execute now: at the frontier, not before their time, and only when what led to them is safe."""
        if self.outcome is not None or self._history.has_replay:
            return []
        is_one_checkpoint = len(self._gains.children) <= CHILDREN_AT_ONCE
        return self._asked.startable(now, self._committed, may_carry=is_one_checkpoint)

    def started(self, call: StepCall, now: Micros) -> None:
        """A step that was startable is being executed."""
        self._asked.started(call)
        call.started_at = call.started_at or now

    def attempt(self, call: TxCall) -> Attempt:
        """What the store is to carry out for a transaction, together with the checkpoint taken last."""
        info = StepInfo(self.run.id, self.run.generation, call.location, call.attempts + 1)
        return Attempt(call, info, self._history.upcoming, self.stamp)

    def next_deadline(self) -> Micros | None:
        """When something of this run is due by itself: a timer, a time-out, a retry, its own end."""
        deadline = self._asked.next_deadline()
        end_by = self.run.end_by if self.run.rollback is None else None
        return deadline if end_by is None or (deadline is not None and deadline < end_by) else end_by

    def is_waiting(self, now: Micros) -> bool:
        """Whether nothing of this run executes or could."""
        return self.outcome is None and not self._is_overdue and self._asked.is_waiting(now)

    @property
    def is_overdue(self) -> bool:
        """Whether a time-out is due and waits for the next checkpoint, which may bring what came before it."""
        return self._is_overdue

    def needs_checkpoint(self) -> bool:
        """Whether there is something to write, were the run to go on."""
        return self.outcome is not None or self._gains.are_due or self._registration.has_new()

    @property
    def has_gains(self) -> bool:
        """Whether there are entries that were not written yet, be it lazily."""
        return bool(self._gains.entries)

    def take_checkpoint(self, next: Next, now: Micros) -> Checkpoint:
        """Everything gained since the last one. The turn goes on; what it gains meanwhile is for the next.

        With too many new children for one, the others are for the next, and the run stays held until then.
        """
        gains, self._gains = self._gains, Gains()
        if not isinstance(next, Renew):  # which drops what was written of this generation, so it writes all at once
            self._gains = gains.split(CHILDREN_AT_ONCE)
        if self._gains.children:
            next = Hold()
        if isinstance(next, TurnAround):
            gains.add(rules.turn_around_entry(next, self._history.next_position(), self.stamp))
        self._published |= gains.values
        charged = self._crashes == 0 and self.run.crashes > 0 and not isinstance(next, Release)
        if charged:
            self.run = replace(self.run, crashes=0)
        waits = self._registration.write(next, self._limits(now))
        if waits is not None:
            self.inbox.registered(waits)
        return gains.checkpoint(
            run_id=self.run.id,
            token=self.token,
            seen=self.inbox.seen,
            next=next,
            waits=waits,
            charged=charged,
        )

    def _limits(self, now: Micros) -> tuple[Wait, ...]:
        """What ends a suspension, or the run, though nothing comes."""
        if self.run.rollback is not None:
            return ()
        end_by, length = self.run.end_by, self.run.options.max_suspend
        limits = (
            (rules.MAX_RUN_LOCATION, self.run.start_at, end_by),
            (rules.MAX_SUSPEND_LOCATION, now, None if length is None else now + length),
        )
        return tuple(
            Wait(location=location, kind=WaitKind.TIME, since=since, deadline=deadline)
            for location, since, deadline in limits
            if deadline is not None
        )

    @property
    def fed(self) -> int:
        """How many facts the last checkpoint carries, with all before; to be given to `committed` when it is written.

        As long as children are left for the next one, nothing more counts as safe.
        """
        return self._committed if self._gains.children else self._fed

    def committed(self, fed: int) -> None:
        """The facts up to this count are safe, and the waits that went with them are known to the store."""
        self._committed = fed
        self._registration.committed()

    # Crashes

    def _charge_crashes(self, now: Micros) -> bool:
        """Count the workers that died with this run as attempts of the steps at its frontier, once.

        Gives True if that used up a step, whose failure was fed.
        """
        if not self._crashes:
            return False
        crashes, self._crashes = self._crashes, 0
        exhausted = []
        for call in self._asked.idle_steps:
            call.attempts += crashes
            if call.attempts >= call.options.retry.max_attempts:
                exhausted.append(call)
            else:
                self._gains.add(call.retrying(None), is_lazy=True)
        for call in exhausted:
            if self._is_open(call):
                self._settle_step(call, EntryState.FAILED, now, error=worker_lost(call.attempts))
        return bool(exhausted)

    def _is_open(self, call: StepCall) -> bool:
        return self.outcome is None and self._asked.holds(call)

    # Leaving

    def drop_gains(self) -> None:
        """Forget what was gained and not written, as it never will be."""
        self._gains = Gains()

    def remember(self, written: Checkpoint) -> None:
        """Bring the history up to what was written, for a turn that will take over from this one."""
        self._history.remember(written.entries)
        self._history.forget(written.pruned)

    def inherit(self, old: Turn) -> None:
        """Take over from a turn of the same lease what it knows to be in the store besides the history."""
        self.token = old.token
        self._registration.inherit(old._registration)
        self.inbox.inherit(old.inbox)
        self._published = old._published

    @property
    def history(self) -> tuple[Entry, ...]:
        """All entries this turn began with or was told to remember."""
        return self._history.entries

    def evict(self) -> None:
        """Leave memory: close every coroutine; nothing they still do counts."""
        if self._root is not None and self._root.done() and not self._root.cancelled():
            self._root.exception()  # it was looked at, or does not matter: a violation came before it
        self.loop.evict(is_over=isinstance(self.outcome, Finish))
        self._asked.clear()
        self._timers.clear()
