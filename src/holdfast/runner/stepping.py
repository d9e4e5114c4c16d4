"""Stepping: the side of a turn that knows nothing of code. What attempts at steps come to, and what is written of it.

It needs no loop and no history, so a task, which is one step and nothing else, needs no more than this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import rules
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
)
from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import ErrorRecord, HoldfastError
from holdfast.core.model import Entry, EntryState, Lease, Wait, WaitKind
from holdfast.core.retry import worker_lost
from holdfast.core.states import RunState
from holdfast.runner.inbox import Inbox
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import StepCall
from holdfast.runner.pending_checkpoint import PendingCheckpoint
from holdfast.runner.registration import Registration
from holdfast.runner.registry import Definition

Outcome = Finish | StartRollback | ContinueAsNew | Block

CHILDREN_AT_ONCE = 1_000
"""So many children are created by one checkpoint at most, so that no transaction is too long."""


class Stepping:
    """What a run has asked for and gained, as its driver sees it. Whoever derives from it says what facts lead to."""

    is_overdue = False
    """Whether a time-out is due and waits for the next checkpoint, which may bring what came before it."""

    _has_undo = False

    def __init__(
        self, lease: Lease, definition: Definition, inbox: Inbox, asked: OpenOperations, *, has_database: bool
    ) -> None:
        self.run = lease.run
        self.token = lease.run.token
        self.has_database = has_database
        self.definition = definition
        self.stamp: Micros = lease.run.first_claimed_at or lease.run.created_at
        self.inbox = inbox
        self.abandoned: list[str] = []
        self.outcome: Outcome | None = None
        self.due_since: Micros | None = None
        """The instant of the first thing that had come, or was due: since then the run could have been claimed."""

        # What its code may take in time; what undoes it may take as long as it needs.
        is_limited = lease.run.rollback is None
        self._end_by = lease.run.end_by if is_limited else None
        self._max_suspend = lease.run.options.max_suspend if is_limited else None

        self._asked = asked
        self._gains = PendingCheckpoint()
        self._fed = 0
        self._committed = 0
        self._is_new = lease.run.token == 1
        self._crashes = lease.run.crashes
        self._published: dict[str, str] = {}
        self._registration = Registration(self._asked, is_first_lease=lease.run.token == 1)

    # What facts lead to

    def begin(self, now: Micros) -> None:
        """Start or resume the run, and go on to the first standstill."""
        raise NotImplementedError

    def settle(self, now: Micros) -> None:
        """Feed what can be fed by `now`."""
        raise NotImplementedError

    def _feed(self, call: Any, entry: Entry) -> None:
        """Tell the run what became of something it asked for."""
        raise NotImplementedError

    def _next_position(self) -> int:
        """The place of a new fact in commit order."""
        raise NotImplementedError

    # Attempts

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

    def _fail(self, call: StepCall, record: ErrorRecord, now: Micros, *, may_retry: bool) -> None:
        if not may_retry:
            self._settle_step(call, EntryState.FAILED, now, error=record)
            return
        self._asked.retried(call)
        call.retry_at = self._stamp(now) + call.options.retry.pause(call.attempts)
        call.after = self._fed = self._fed + 1
        self._gains.add(call.retrying(record))
        self.settle(now)

    def _settle_step(
        self,
        call: StepCall,
        state: EntryState,
        now: Micros,
        *,
        result: str | None = None,
        error: ErrorRecord | None = None,
    ) -> None:
        entry = call.settled(state, self._next_position(), self._stamp(now), result=result, error=error)
        self._is_new = True
        self._has_undo = self._has_undo or entry.has_undo
        if not call.options.ephemeral:
            self._fed += 1
        self._gains.add(entry, is_lazy=call.options.ephemeral)
        self._feed(call, entry)
        self.settle(now)

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

    def _stamp(self, now: Micros) -> Micros:
        """The instant of the next fact: never earlier than the one before."""
        self.stamp = max(self.stamp, now)
        return self.stamp

    # News of bodies

    def publish(self, name: str, value: str) -> None:
        """Set a named value, for everybody to read."""
        self._gains.publish(name, None if self._published.get(name) == value else value)

    def beat(self, number: int) -> None:
        """Have it noted that a body lives, for the so-manieth time under this lease."""
        self._gains.beat = number

    # Judging

    def _crash_loop(self) -> Block | None:
        """The block of a run that too many workers in a row have died with."""
        if self.run.crashes < self.definition.crash_limit:
            return None
        message = f"{self.run.crashes} workers in a row died with this run; it is not tried again by itself"
        return Block(error=ErrorRecord(type="CrashLoop", message=message))

    def _expired(self, now: Micros) -> str | None:
        """Why the run has to be cancelled: it takes too long, or was suspended for too long without anything coming."""
        if self._end_by is not None and now >= self._end_by:
            return f"it ran longer than its max_run of {(self.run.options.max_run or 0) / SECOND:g} s"
        if self._max_suspend is None:
            return None
        since = self._suspended_since()
        if since is None or now < since + self._max_suspend:
            return None
        if not self.inbox.has_due(now) and self._asked.is_waiting(now):
            return f"it was suspended longer than its max_suspend of {self._max_suspend / SECOND:g} s"
        return None

    def _suspended_since(self) -> Micros | None:
        """When the suspension began that the run is still in: as long as nothing has come, waking it ends none."""
        since = self.run.suspended_at
        return since if since is not None and self._fed == 0 and self.stamp <= since else None

    def _cancelled(self, why: str) -> Outcome:
        return self._finished(Finish(state=RunState.CANCELLED, error=rules.cancellation(why)))

    def _finished(self, end: Outcome) -> Outcome:
        """The end; or, if there is something to undo and a reason to, the turn-around that precedes it."""
        if not isinstance(end, Finish) or end.state is RunState.SUCCEEDED or not self._has_undo:
            return end
        error = end.error or ErrorRecord(type="Unknown", message="")
        return StartRollback(end=end.state, error=error)

    def _blocked(self, error: HoldfastError, now: Micros) -> Block:
        """Commit what was fed, and nothing that was asked for since; a fixed deploy heals the run at a later try."""
        self.drop_requests()
        previous = self.run.error if self.run.error != self.definition.reason else None
        count, pause = rules.blocked_retry(previous)
        return Block(error=ErrorRecord.of(error, attempts=count), retry_at=now + pause)

    # What is wanted

    def startable(self, now: Micros) -> list[StepCall]:
        """The steps to execute now: at the frontier, not before their time, and only when what led to them is safe."""
        if self.outcome is not None:
            return []
        is_one_checkpoint = self._gains.child_count <= CHILDREN_AT_ONCE
        return self._asked.startable(now, self._committed, may_carry=is_one_checkpoint)

    def started(self, call: StepCall, now: Micros) -> None:
        """A step that was startable is being executed."""
        self._asked.started(call)
        call.started_at = call.started_at or now

    @property
    def child_count(self) -> int:
        """How many single children the run waits for."""
        return self._asked.child_count

    def next_deadline(self) -> Micros | None:
        """When something of this run is due by itself: a timer, a time-out, a retry, its own end."""
        deadline, end_by = self._asked.next_deadline(), self._end_by
        return deadline if end_by is None or (deadline is not None and deadline < end_by) else end_by

    def is_waiting(self, now: Micros) -> bool:
        """Whether nothing of this run executes or could."""
        return self.outcome is None and not self.is_overdue and self._asked.is_waiting(now)

    @property
    def unfinished(self) -> int:
        """How many tasks of the code have not ended."""
        return 0

    # Checkpoints

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
        gains, self._gains = self._gains, PendingCheckpoint()
        if gains.child_count > CHILDREN_AT_ONCE and not isinstance(next, ContinueAsNew):
            # A renewal drops what was written of this generation, so it writes all at once.
            self._gains = gains.split(CHILDREN_AT_ONCE)
            next = Hold()
        if isinstance(next, StartRollback):
            gains.add(rules.rollback_entry(next, self._next_position(), self.stamp))
        if gains.values:
            self._published |= gains.values
        # A release that writes nothing tells nothing of the crashes: the next worker has to count them, too.
        is_telling = bool(gains.entries) or not isinstance(next, Release)
        charged = self._crashes == 0 and self.run.crashes > 0 and is_telling
        if charged:
            self.run = replace(self.run, crashes=0)
        waits = self._registration.write(next, self._limits(now) if isinstance(next, Suspend) else ())
        if waits is not None:
            self.inbox.registered(waits)
        return gains.checkpoint(self.run.id, self.token, self.inbox.seen, next, waits, charged=charged)

    def _limits(self, now: Micros) -> tuple[Wait, ...]:
        """What ends a suspension, or the run, though nothing comes."""
        length, since = self._max_suspend, self._suspended_since() or now
        limits = (
            (rules.MAX_RUN_LOCATION, self.run.start_at, self._end_by),
            (rules.MAX_SUSPEND_LOCATION, since, None if length is None else since + length),
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
        return self._committed if self._gains.child_count else self._fed

    def committed(self, fed: int) -> None:
        """The facts up to this count are safe, and the waits that went with them are known to the store."""
        self._committed = fed
        self._registration.committed()

    # Leaving

    def drop_requests(self) -> None:
        """Forget what the code has asked for since the last fact it was fed, as the run is to be blocked."""
        self._gains.drop_requests()

    def drop_gains(self) -> None:
        """Forget what was gained and not written, as it never will be."""
        self._gains = PendingCheckpoint()

    def inherit(self, old: Stepping) -> None:
        """Take over from a turn of the same lease what it knows to be in the store besides the history."""
        self.token = old.token
        self._registration.inherit(old._registration)
        self.inbox.inherit(old.inbox)
        self._published = old._published

    def remember(self, written: Checkpoint) -> None:
        """Bring the history up to what was written, for a turn that will take over from this one."""
        raise NotImplementedError

    @property
    def history(self) -> tuple[Entry, ...]:
        """All entries this turn began with or was told to remember."""
        raise NotImplementedError

    @property
    def survivors(self) -> Sequence[str]:
        """The lines at which code stands that swallowed every attempt to close it; known after `evict`."""
        return ()

    def evict(self) -> None:
        """Leave memory; nothing that is still done counts."""
        self._asked.clear()
