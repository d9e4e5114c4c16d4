"""The run driver: connects the turn of one leased run with its step bodies and the committer.

All methods are called from plain callbacks of the worker's loop, never from inside a task.
"""

from __future__ import annotations

import time
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

from msgspec.structs import replace

from holdfast.core.checkpoint import (
    Block,
    Checkpoint,
    ContinueAsNew,
    Finish,
    Hold,
    Next,
    Release,
    StartRollback,
    Suspend,
    Verdict,
)
from holdfast.core.clock import SECOND, Clock, Micros, Timer, micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Holding, Lease
from holdfast.core.ports import Transacted
from holdfast.core.rules import next_deadline
from holdfast.core.verbs import StopRequest
from holdfast.runner.definition import Definition, Task
from holdfast.runner.flow_turn import FlowTurn, FlowType
from holdfast.runner.operation import AttemptEnd, Raised, Returned, StepCall, TimedOut, TxCall
from holdfast.runner.rollback import Undoing
from holdfast.runner.run_turn import RunTurn, Standstill
from holdfast.runner.step_info import PROGRESS, StepInfo
from holdfast.runner.task_turn import TaskTurn
from holdfast.runner.turn import Turn
from holdfast.worker.committer import CheckpointSource, Transactor
from holdfast.worker.executor import Body, Executor
from holdfast.worker.signals import Journal, SignalSender


class WorkerClock(Clock, Protocol):
    """A clock that follows the clock of the store."""

    def sync(self, now: Micros, asked_at: Micros | None = None) -> None: ...


class CheckpointSink(Protocol):
    """Writes the checkpoints of run drivers. The committer of a worker is one."""

    def add(self, source: CheckpointSource, /) -> None:
        """Write a run's checkpoint soon. The answer may arrive before this method returns."""
        ...


class DriverHost(Protocol):
    """A worker as its run drivers see it."""

    name: str
    leased_until: Micros
    """End of the leases that the last heartbeat renewed, by the store's clock."""

    @property
    def clock(self) -> Clock: ...

    @property
    def committer(self) -> CheckpointSink: ...

    grace_seconds: float
    """The time that a body gets to end, when its worker stops or its run is evicted."""
    gathers: bool
    """True if a run that waits for many children stays in memory for a while after one has ended."""
    executor: Executor
    signal_sender: SignalSender
    transactor: Transactor | None
    is_draining: bool
    always_replay: bool
    body_of: Callable[[StepCall], Callable[..., Any]] | None

    def is_crowded(self) -> bool:
        """Return True if another run needs the slot of a run that only waits."""
        ...

    def linger(self, driver: RunDriver, is_lingering: bool) -> None:  # noqa: FBT001 - the name says it
        """Note that a run begins or stops to wait in memory for a near deadline. It gives up its slot if needed."""
        ...

    def release(self, driver: RunDriver, end: Finish | None, ready_at: Micros | None) -> None:
        """Forget a run that is no longer held here.

        `end` is set if the run ended, `ready_at` if the time at which it can continue is known.
        """
        ...


LINGER: Micros = SECOND
"""A run whose next deadline is this near stays in memory: suspending it would cost more than it saves."""

GATHERING = 32
"""A run that waits for at least this many children stays in memory for a while after an arrival."""

GATHER_LINGER: Micros = SECOND // 4
"""Time for which such a run stays. More children end soon, and a replay for each of them takes quadratic time."""


class Gathering:
    """Keeps a run that waits for many children in memory, even if the children fill all slots of its worker."""

    __slots__ = ("_is_wide", "arrived_at")

    def __init__(self, arrived_at: Micros) -> None:
        self.arrived_at = arrived_at
        """Time of the last arrival, or 0."""
        self._is_wide = False

    def until(self, standstill: Standstill) -> Micros:
        """Return the time until which the run stays, or 0. A run that once waited for many also stays for the last."""
        if not self.arrived_at:
            return 0
        count = standstill.child_count
        self._is_wide = self._is_wide or count >= GATHERING
        return self.arrived_at + GATHER_LINGER if self._is_wide and count else 0


LISTEN_EVERY: Micros = SECOND // 4
"""Minimum interval between two progress reports taken from one step."""

BEAT_EVERY: Micros = 60 * SECOND
"""Minimum interval between two recorded heartbeats of a run. The claim counts as the first one."""


class ReportReceiver(Protocol):
    """A receiver of reports: the turn of the run, which records them."""

    def publish(self, name: str, value: str) -> None: ...

    def beat(self, number: int) -> None: ...


class Reports:
    """Takes the reports of one held run's bodies, from its claim on."""

    def __init__(self, clock: Clock, claimed_at: Micros) -> None:
        self._clock = clock
        self._beat_at = claimed_at
        self._beats = 0
        self._rests: dict[StepInfo, Timer] = {}

    def record(self, info: StepInfo, receiver: ReportReceiver, again: Callable[[StepInfo], None]) -> None:
        """Record the report that a body has signalled. The body can signal `again` only after a rest."""
        if info in self._rests:
            return  # it signalled while its last report was taken; the end of the rest takes this one
        now = self._clock.now()
        self._rests[info] = self._clock.call_at(now + LISTEN_EVERY, lambda: self._end_rest(info, again))
        self.publish(info, receiver)
        if info.has_beaten:
            info.has_beaten = False
            if now >= self._beat_at + BEAT_EVERY:
                self._beat_at = now
                self._beats += 1
                receiver.beat(self._beats)

    @staticmethod
    def publish(info: StepInfo, receiver: ReportReceiver) -> None:
        """Record the latest value that a body has published, unless it is recorded already."""
        if (news := info.news) is not info.recorded:
            info.recorded = news
            receiver.publish(PROGRESS, news or "null")

    def forget(self, info: StepInfo) -> None:
        """Stop listening to a body that has ended or was abandoned."""
        if (rest := self._rests.pop(info, None)) is not None:
            rest.cancel()

    def _end_rest(self, info: StepInfo, again: Callable[[StepInfo], None]) -> None:
        del self._rests[info]
        if info.rearm():
            again(info)


def turn_of(lease: Lease, definition: Definition | FlowType, *, has_database: bool, seen: int | None = None) -> RunTurn:
    """Return the turn that drives a leased run."""
    if isinstance(definition, FlowType):
        return FlowTurn(lease, definition, seen=seen, has_database=has_database)
    if isinstance(definition, Task) and TaskTurn.suits(definition, lease.entries):
        return TaskTurn(lease, definition, seen=seen, has_database=has_database)
    return Turn(lease, definition, seen=seen, has_database=has_database)


SLOW_SECONDS = 0.1

_HOLD, _SUSPEND, _RELEASE = Hold(), Suspend(), Release()


class RunDriver:
    """Drives one run: feeds its turn, acts on its standstills, and releases it in the end.

    A standstill says what the run needs next. The driver adds the view of the worker: it checks that the lease is
    still valid, and decides whether to give the run back and whether to keep it in memory.
    """

    def __init__(self, lease: Lease, definition: Definition | FlowType, host: DriverHost) -> None:
        self.id = lease.run.id
        self.token = lease.run.token
        self.crashes = lease.run.crashes
        self._leased_until = lease.run.ready_at or 0
        if lease.run.rollback is not None and isinstance(definition, Definition):
            definition = undoing = Undoing(definition, lease)
            lease = undoing.lease(lease)
        self._lease = lease
        self._definition: Definition | FlowType = definition
        self._host = host
        self._turn: RunTurn = turn_of(lease, definition, has_database=host.transactor is not None)
        self._bodies: dict[str, Body] = {}
        self._transaction: tuple[TxCall, Future[Any]] | None = None
        self._ended: tuple[Body, ...] = ()
        self._reports: Reports | None = None
        self._sent: Checkpoint | None = None
        self._wanted: Next | None = None
        self._refusal: Block | None = None
        self._timer: Timer | None = None
        self._timer_at: Micros | None = None
        self._is_gone = False
        self._is_lingering = False
        self._gathering = Gathering(host.clock.now() if lease.arrivals and host.gathers else 0)
        self._stop_request = lease.run.stop
        self._ending: set[Body] = set()
        self._patience: Timer | None = None
        self._signals = host.signal_sender.signals
        self._journal = Journal(lease.run, host.name)
        self._seconds: dict[str, float] = {}

    @property
    def holding(self) -> Holding:
        """The run as the heartbeat reports it to the store."""
        return Holding(run_id=self.id, token=self.token, seen=self._turn.inbox.seen)

    @property
    def is_executing(self) -> bool:
        return bool(self._bodies or self._ending) or self._transaction is not None

    def begin(self) -> None:
        """Start or resume the workflow."""
        standstill = self._drive(self._turn.begin)
        if self._signals.is_used:
            self._signal_claim()
        self._act_on(standstill)

    def _signal_claim(self) -> None:
        run = self._lease.run
        # A member of a group waits for a slot, and the time when it got the slot is not recorded.
        is_first = run.token == 1 and run.group is None
        ready_at = run.start_at if is_first else self._turn.due_since
        if ready_at is None and not run.crashes:
            due = (one.retry_at for one in self._lease.entries if one.retry_at and not one.is_settled)
            ready_at = min((at for at in due if at <= run.updated_at), default=None)
        self._host.signal_sender.send_claimed(run, run.updated_at, ready_at)

    def advance(self) -> None:
        """Feed everything that is due, and act on the new standstill."""
        if not self._is_gone and not self._is_leaving() and self._transaction is None:
            self._act_on(self._drive(self._turn.settle))

    def _act_on(self, standstill: Standstill) -> None:
        """Act on a standstill: start steps, write a checkpoint if one is needed, and set the timer."""
        if standstill.start and self._may_begin(standstill.at):
            self._start_steps(standstill)
        if self._sent is None:
            self._wanted = self._next(standstill)
        if standstill.wake_at is not None or self._timer is not None or self._gathering.arrived_at:
            self._arm(standstill)
        # Nothing executes and no checkpoint is in flight or due: the run only waits for a near deadline.
        is_lingering = not self._bodies and not self._ending and self._sent is None and self._wanted is None
        if is_lingering != self._is_lingering:
            self._linger(is_lingering=is_lingering)
        if self._sent is None and self._wanted is not None:
            self._host.committer.add(self)  # must be last: the answer may come inside this call and release the run

    def _start_steps(self, standstill: Standstill) -> None:
        try:
            for call in standstill.start:
                if isinstance(call, TxCall):
                    self._transact(call, standstill.at)
                else:
                    self._execute(call, standstill.at)
        except Exception as error:  # noqa: BLE001 - see `_block_after`
            self._block_after(error)

    def _may_begin(self, now: Micros) -> bool:
        """Return True if steps may start: the run continues, this worker keeps it, and the lease has not ended.

        After a freeze of this process another worker may hold the run. Only the next heartbeat can tell.
        """
        if self._refusal is not None or self._is_giving_back():
            return False
        return now < self._leased_until or now < self._host.leased_until

    def _linger(self, *, is_lingering: bool) -> None:
        self._is_lingering = is_lingering
        self._host.linger(self, is_lingering)

    def apply(self, verdict: Verdict) -> None:
        """Apply the verdict that a heartbeat or a lease check got about the run."""
        if self._is_gone:
            return
        if verdict.is_lost:
            # A checkpoint that releases the run may be committed while its answer is on the way. That answer decides.
            if not self._is_leaving():
                self.lose()
            return
        self._note_stop_request(verdict)
        self._receive(verdict)
        self.advance()

    def _note_stop_request(self, verdict: Verdict) -> None:
        """Note how the store asks for the run. If it is to be evicted, cancel its bodies, and wait for their end."""
        self._stop_request = verdict.stop
        if verdict.stop is None or verdict.stop is StopRequest.PAUSE:
            return
        bodies = list(self._bodies.values())
        self._abandon(list(self._bodies))
        self._ending.update(body for body in bodies if body.abandon(self._on_body_end))
        if self._ending and self._patience is None:
            grace = self._host.clock.now() + micros(self._host.grace_seconds)
            self._patience = self._host.clock.call_at(grace, self.stop)

    def _on_body_end(self, body: Body) -> None:
        self._ending.discard(body)
        if not self._ending:
            self.advance()

    def _receive(self, verdict: Verdict) -> None:
        if verdict.arrivals and self._host.gathers:
            self._gathering.arrived_at = self._host.clock.now()
        self._turn.inbox.add(verdict.arrivals, verdict.seen)

    def stop(self) -> None:
        """Give the run back now: abandon every running body, and record nothing about it."""
        self._abandon(list(self._bodies))
        self._ending.clear()
        self.advance()

    def drop(self) -> None:
        """Forget the run without a write to the store, as a crash would."""
        self._leave()

    # Steps

    def _execute(self, call: StepCall, now: Micros) -> None:
        self._turn.mark_started(call, now)
        if call.location in self._bodies:
            self._bodies[call.location].call = call  # after `_replay`, the new turn asks for a running step
        else:
            if self._host.body_of is not None:
                call.function = self._host.body_of(call)
            info = call.info(self.id, self._lease.run.generation, self._schedule_report)
            prepare = self._signal_start if self._signals.is_used else None
            self._bodies[call.location] = self._host.executor.start(call, info, self._on_step_end, prepare)

    def _signal_start(self, body: Body) -> None:
        call = body.call
        self._host.signal_sender.send_step_started(
            self._lease.run, call.location, call.kind, body.info.attempt, body.context
        )

    def _on_step_end(self, body: Body) -> None:
        if self._transaction is not None:
            self._ended += (body,)
            return
        call = body.call
        if self._is_gone or self._bodies.pop(call.location, None) is None:
            return
        if self._reports is not None:
            self._reports.forget(body.info)
        if body.info.news is not body.info.recorded:
            Reports.publish(body.info, self._turn)
        if self._signals.is_used:
            self._seconds[call.location] = time.perf_counter() - body.began
        self._act_on(self._drive(self._turn.feed, call, self._end_of(body)))

    def _end_of(self, body: Body) -> AttemptEnd:
        if body.error is None and not body.is_timed_out:
            return Returned(body.value)
        self._journal.log_failed_attempt(body)
        return TimedOut() if body.error is None or body.is_timed_out else Raised(body.error)

    def _abandon(self, locations: Sequence[str]) -> None:
        for location in locations:
            body = self._bodies.pop(location, None)
            if body is not None:
                body.abandon()
                if self._reports is not None:
                    self._reports.forget(body.info)

    def _schedule_report(self, info: StepInfo) -> None:
        """Pass on a body's signal that it has a report. The body calls this in its own thread."""
        self._host.executor.call_on_loop(self._record_report, info)

    def _record_report(self, info: StepInfo) -> None:
        body = self._bodies.get(info.location)
        if self._is_gone or body is None or body.info is not info:
            return
        if self._reports is None:
            self._reports = Reports(self._host.clock, self._lease.run.updated_at)
        self._reports.record(info, self._turn, self._record_report)
        self._act_on(self._turn.standstill(self._host.clock.now()))

    # Transactions

    def _transact(self, call: TxCall, now: Micros) -> None:
        """Start a transaction in the store. It counts as the run's checkpoint in flight.

        Until the store answers, nothing is fed, because the entry of the transaction takes the next position.
        """
        transactor = self._host.transactor
        if self._sent is not None or self._ended or transactor is None:
            return  # the turn asks for it again when that is done
        assert isinstance(self._turn, Turn), "a task has no transactions"
        self._turn.mark_started(call, now)
        if self._host.body_of is not None:
            call.function = self._host.body_of(call)
        checkpoint = self._sent = self._take_from_turn(_HOLD, now)
        attempt = self._turn.attempt(call)
        if self._signals.is_used:
            self._seconds[call.location] = -time.perf_counter()
            number = call.attempts + 1
            self._host.signal_sender.send_step_started(
                self._lease.run, call.location, call.kind, number, attempt.context
            )
        self._transaction = call, transactor.start(checkpoint, attempt.location, attempt, self._on_transacted)

    def _on_transacted(self, answer: Transacted | Exception) -> None:
        """Apply the answer to a transaction, then feed the step results that had to wait for it."""
        if self._is_gone or self._transaction is None:
            return
        (call, _), self._transaction = self._transaction, None
        if call.location in self._seconds:
            self._seconds[call.location] += time.perf_counter()
        if isinstance(answer, Exception):
            self.on_refused(answer)
        else:
            self._feed_transacted(call, answer)
            self.on_written(answer.verdict)
        ended, self._ended = self._ended, ()
        for body in ended:
            self._on_step_end(body)
        if ended:
            self.advance()  # another transaction may have waited for these results

    def _feed_transacted(self, call: TxCall, answer: Transacted) -> None:
        """Feed the result or the error of a transaction. `on_written` acts on the standstill afterwards."""
        if answer.entry is not None:
            assert isinstance(self._turn, Turn), "a task has no transactions"
            if self._sent is not None:  # the store has added the entry to this checkpoint
                self._sent = replace(self._sent, entries=(*self._sent.entries, answer.entry))
            self._drive(self._turn.feed_committed, call, answer.entry)
        elif answer.error is not None:
            self._drive(self._turn.feed, call, Raised(answer.error))

    # Checkpoints

    def _is_leaving(self) -> bool:
        return self._sent is not None and not isinstance(self._sent.next, Hold)

    def _next(self, standstill: Standstill) -> Next | None:
        """Return what the next checkpoint does with the run, or None if no checkpoint is needed."""
        if self._refusal is not None:
            return self._refusal
        if standstill.end is not None:
            return standstill.end
        if not self._bodies and not self._ending:
            if self._stop_request is StopRequest.EVICT:
                return _RELEASE  # not suspended: it is ready now
            if standstill.may_suspend and not self._lingers(standstill):
                return _SUSPEND
            if self._is_giving_back():
                return _RELEASE
        return _HOLD if standstill.must_write else None

    def _lingers(self, standstill: Standstill) -> bool:
        """Return True if a waiting run stays in memory."""
        if self._is_giving_back():
            return False
        is_near = standstill.wake_at is not None and standstill.wake_at - standstill.at <= LINGER
        has_near = is_near and not self._host.is_crowded()
        return has_near or self._gathering.until(standstill) > standstill.at

    def _is_giving_back(self) -> bool:
        """Return True if the worker releases the run as soon as none of its steps executes: on pause or shutdown."""
        return self._stop_request is not None or self._host.is_draining

    def take_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to write now. The committer calls this."""
        if self._is_gone or self._sent is not None:
            return None
        next, self._wanted = self._wanted, None
        if next is None:
            return None
        checkpoint = self._sent = self._take_from_turn(next, self._host.clock.now())
        if not isinstance(checkpoint.next, Hold):
            self._disarm()
        return checkpoint

    def _take_from_turn(self, next: Next, now: Micros) -> Checkpoint:
        checkpoint = self._turn.take_checkpoint(next, now)
        return self._host.signal_sender.with_trace(self._lease.run, checkpoint) if checkpoint.children else checkpoint

    def on_written(self, verdict: Verdict) -> None:
        """Apply the store's answer to the checkpoint in flight. The committer calls this."""
        if self._is_gone or self._sent is None:
            return
        checkpoint, self._sent = self._sent, None
        if verdict.is_lost:
            self._journal.info("run %s is no longer leased to this worker; its unrecorded progress is dropped", self.id)
            self.lose()
            return
        if self._signals.is_used:
            self._signal_written(checkpoint, verdict)
        if not verdict.is_held:
            self._leave_by(checkpoint)
            return
        if checkpoint.charged:
            self.crashes = 0  # it has made progress since the crash, so it is no longer a suspect
        self._note_stop_request(verdict)
        standstill = self._turn.mark_committed(self._host.clock.now())
        if verdict.arrivals or verdict.seen:
            self._receive(verdict)
        if self._host.always_replay:
            standstill = self._replay(checkpoint, standstill)
        if verdict.arrivals or isinstance(checkpoint.next, Suspend) or self._turn.is_overdue:
            self.advance()
        else:
            self._act_on(standstill)

    def _signal_written(self, checkpoint: Checkpoint, verdict: Verdict) -> None:
        self._host.signal_sender.send_written(self._lease.run, checkpoint, verdict, self._seconds)
        for entry in checkpoint.entries:
            self._seconds.pop(entry.location, None)

    def on_refused(self, error: Exception) -> None:
        """Block the run, because the store will never accept its checkpoint. The committer calls this."""
        sent, self._sent = self._sent, None
        self._journal.error("the store refuses a checkpoint of run %s", error)
        if self._refusal is not None and (sent is None or not sent.entries):
            # The store refuses even the block. The lease ends, and the next worker that claims the run counts a crash.
            self._leave(ready_at=self._lease.run.ready_at)
        else:
            self._turn.pending.drop()
            self._block(error)
            self._act_on(self._turn.standstill(self._host.clock.now()))

    def _block(self, error: Exception) -> None:
        """Block the run with the next checkpoint. Besides the block, it contains only facts fed to the code."""
        self._abandon(list(self._bodies))
        self._turn.pending.drop_requests()
        self._refusal = Block(error=ErrorRecord.of(error))

    def _replay(self, written: Checkpoint, standstill: Standstill) -> Standstill:
        """Continue from the recorded history, as another worker would. For tests."""
        old = self._turn
        old.remember(written)
        if standstill.end is not None or standstill.must_write or old.pending.entries:
            return standstill  # newer facts are not recorded yet; try again after the next checkpoint
        run = replace(old.pending.run, token=max(2, old.pending.run.token))
        self._lease = Lease(run=run, entries=old.entries, arrivals=tuple(old.inbox.arrivals))
        old.evict()
        self._turn = turn_of(self._lease, self._definition, has_database=old.has_database, seen=old.inbox.seen)
        self._turn.inherit(old)
        return self._drive(self._turn.begin)

    # Time

    def _arm(self, standstill: Standstill) -> None:
        """Set a timer for the next deadline of this run."""
        now, deadline = standstill.at, standstill.wake_at
        if self._gathering.arrived_at and (until := self._gathering.until(standstill)) > now and not self._bodies:
            deadline = until if deadline is None else min(deadline, until)
        if deadline is not None and (self._is_leaving() or self._is_gone or self._turn.is_overdue):
            deadline = None
        is_writing = self._sent is not None or self._wanted is not None
        if deadline is not None and deadline <= now and (is_writing or not self._may_begin(now)):
            deadline = None  # an answer, a heartbeat or a body drives the run next; a timer would fire again and again
        if deadline == self._timer_at:
            return
        self._disarm()
        if deadline is not None:
            self._timer_at = deadline
            self._timer = self._host.clock.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        self.advance()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None

    # Driving and leaving

    def _drive(self, action: Callable[..., Standstill], *facts: Any) -> Standstill:
        """Pass facts to the turn, and abandon the bodies that its code no longer waits for."""
        started, now = time.perf_counter(), self._host.clock.now()
        try:
            standstill = action(*facts, now)
        except Exception as error:  # noqa: BLE001 - see `_block_after`
            self._block_after(error)
            standstill = self._turn.standstill(now)
        if standstill.abandon:
            self._abandon(standstill.abandon)
        took = time.perf_counter() - started
        if took > SLOW_SECONDS:
            self._journal.warn_of_slow_code(took, is_flow=isinstance(self._definition, FlowType))
            standstill = self._turn.standstill(self._host.clock.now())  # time has passed: the lease may have ended
        return standstill

    def _block_after(self, error: Exception) -> None:
        """Block the run after an error that is not the workflow's. The error must not harm other runs."""
        self._journal.error("run %s is blocked by an internal error", error)
        self._block(error)

    def _leave_by(self, checkpoint: Checkpoint) -> None:
        """Release the run, as the store did when it wrote this checkpoint."""
        self._journal.log_release(checkpoint.next)
        match checkpoint.next:
            case Finish() as end:
                self._leave(end)
            case Block(retry_at=retry_at):
                self._leave(ready_at=retry_at)
            case StartRollback() | ContinueAsNew():
                self._leave(ready_at=self._host.clock.now())
            case Suspend() | Release() | Hold():
                self._leave(ready_at=next_deadline(checkpoint.waits or ()))
            case unknown:
                assert_never(unknown)

    def lose(self) -> None:
        """Drop the run, because another worker holds it now, or it has ended."""
        if self._signals.is_used:
            self._host.signal_sender.send_lost(self._lease.run)
        self._leave()

    def _leave(self, end: Finish | None = None, ready_at: Micros | None = None) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        if self._is_lingering:
            self._linger(is_lingering=False)
        self._disarm()
        if self._patience is not None:
            self._patience.cancel()
        self._abandon(list(self._bodies))
        if self._transaction is not None:
            self._transaction[1].cancel()
        if end is not None and (left := self._turn.unfinished):
            self._journal.warning("run %s ended while %d of its tasks had not; holdfast drops them", self.id, left)
        self._turn.evict()
        if self._turn.survivors:
            self._journal.warn_of_survivors(self._definition, self._turn.survivors)
        self._host.release(self, end, ready_at)
