"""The turn of a flow: feeds facts to its machine and saves the machine's state. There is no code to replay."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core.checkpoint import Block, Checkpoint, ContinueAsNew, Finish, Hold, Next, Release, Suspend
from holdfast.core.clock import Micros
from holdfast.core.entries import ADOPTED_LOCATION, FLOW_LOCATION, TURN_PREFIX
from holdfast.core.errors import ErrorRecord, InvalidRequest, Unreadable, WorkflowViolation
from holdfast.core.flow_revision import adopted_in, reopened_in
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Lease, Run, WaitKind
from holdfast.core.rules import CRASH_LIMIT
from holdfast.core.states import RunState
from holdfast.flows.limits import DEFAULT_FLOW_LIMITS, FlowLimits
from holdfast.flows.machine import Machine
from holdfast.flows.program import Program
from holdfast.flows.requests import Continued, FlowRaised, FlowReturned, FlowState, Sliced, Waiting, decode_flow_state
from holdfast.runner.flow_requests import FlowRequests, fed_outcome, member_place, place_of
from holdfast.runner.history import ShortHistory
from holdfast.runner.operation import (
    ChildGroup,
    Operation,
    Reception,
    Settled,
    StepCall,
)
from holdfast.runner.run_turn import RunTurn, Standstill


class FlowCode(msgspec.Struct, frozen=True):
    """A version of a flow, ready to be executed."""

    version: str
    program: Program
    source: str


class FlowFinder(Protocol):
    """Finds the code of a run. It does no I/O: code that is not in memory is loaded meanwhile."""

    def code_of(self, run: Run, version: str | None) -> FlowCode | None:
        """Return the code of a run, by its version once it has begun. None while it is being loaded.

        Raises `Unreadable` if the store does not have it, or if this worker cannot execute it.
        """
        ...


class FlowType:
    """A type whose runs are flows. It takes the place of a `Definition`."""

    is_task = False
    reason: ErrorRecord | None = None
    crash_limit = CRASH_LIMIT

    def __init__(self, type: str, finder: FlowFinder, description: str = "") -> None:
        self.type = type
        self.description = description
        self.finder = finder
        self.surviving_lines: set[str] = set()

    def __repr__(self) -> str:
        return f"<flow {self.type}>"


KEPT_TURNS = 10
"""Minimum number of snapshots that a flow keeps for people. Every as many turns, older ones are removed."""


class FlowTurn(RunTurn):
    """The turn of a flow run. `RunTurn` describes its methods."""

    definition: FlowType
    _history: ShortHistory

    def __init__(
        self,
        lease: Lease,
        definition: FlowType,
        *,
        seen: int | None = None,
        has_database: bool = True,
        limits: FlowLimits = DEFAULT_FLOW_LIMITS,
    ) -> None:
        super().__init__(lease, definition, seen=seen, has_database=has_database)
        run = lease.run
        self._history = ShortHistory(lease.entries, run.first_claimed_at or run.created_at)
        self._requests = FlowRequests(run, self._history, self._open, self.pending, limits)
        self._flow_limits = limits
        self.inbox.restore_cursors(self._history)
        self._machine: Machine | None = None
        self._version = ""
        self._turn_number = 0
        self._turns: tuple[int, ...] = ()
        self._is_sliced = False
        self._is_moved = False
        self._unsaved_instructions = 0
        self._forgotten = 0
        self._failed: list[str] = []
        """The locations of children whose failure was fed since the last snapshot. A recovery reopens them."""

    # Driving

    def begin(self, now: Micros) -> Standstill:
        self._end_crash_loop()
        self.pending.crashes = 0  # there are no steps to charge them to: the next checkpoint shows progress
        return self.settle(now)

    def settle(self, now: Micros) -> Standstill:
        if self.outcome is None and self._machine is None:
            self._load(now)
        if self.outcome is None and self._machine is not None:
            self._advance(self._machine, now)
        return self.standstill(now)

    def _advance(self, machine: Machine, now: Micros) -> None:
        """Run the program and feed what is due, until nothing is left to do or others need the event loop."""
        until = machine.work + self._flow_limits.instructions_per_slice
        while self.outcome is None and not self._must_write_first:
            self.is_overdue = False
            if (end := self._exceeded(now)) is not None:
                self.outcome = end
            elif machine.work >= until:
                break
            elif self._is_sliced:
                self._run(machine, until - machine.work, now)
            elif (due := self._pop_due(now)) is not None:
                self._feed(machine, *due, now)
                self._is_sliced = True
            else:
                break

    @property
    def _must_write_first(self) -> bool:
        """True if a checkpoint has to be written before the program continues."""
        return self._requests.has_unsent or self._unsaved_instructions >= self._flow_limits.instructions_per_turn

    def standstill(self, now: Micros) -> Standstill:
        if self.outcome is not None:
            return Standstill(at=now, end=self.outcome)
        if self._machine is None:
            return Standstill(at=now)  # its program is being loaded
        frontier = self._open.frontier(now, self.pending.committed_count, may_carry=False)
        is_busy = self._is_sliced or self._must_write_first
        wake_at = now if self._is_sliced and not self._must_write_first else frontier.wake_at
        if self._limits is not None:
            wake_at = self._limits.earliest(wake_at)
        has_due = frontier.wake_at is not None and frontier.wake_at <= now
        return Standstill(
            at=now,
            may_suspend=not is_busy and not has_due and not self.is_overdue,
            must_write=self._must_write_first or self.pending.is_due(),
            # An overdue wait waits for the answer to the next checkpoint, not for time to pass.
            wake_at=None if self.is_overdue else wake_at,
            child_count=frontier.child_count,
        )

    # The machine

    def _load(self, now: Micros) -> None:
        """Begin the program, or continue it from its snapshot. Does nothing while the program is being loaded."""
        run, flow = self.pending.run, self._history.get(FLOW_LOCATION)
        try:
            code = self.definition.finder.code_of(run, None if flow is None else flow.ref)
            if code is not None:
                self._version = code.version
                self._machine = self._begun(code) if flow is None or flow.result is None else self._resumed(code, flow)
                self._requests.adopt(adopted_in(self._history.get(ADOPTED_LOCATION)))
                self._carry_out()
                self._is_sliced = True
        except Unreadable as error:
            self._block(error, now)
        except InvalidRequest as error:
            # The payload does not fit. The traceback would only show code of the engine.
            self.outcome = Finish(state=RunState.FAILED, error=replace(ErrorRecord.of(error), traceback=""))

    def _begun(self, code: FlowCode) -> Machine:
        run = self.pending.run
        stamp = self._history.stamp
        return Machine.begin(code.program, code.source, run.input, run_id=run.id, now=stamp, limits=self._flow_limits)

    def _resumed(self, code: FlowCode, flow: Entry) -> Machine:
        state = decode_flow_state(flow.result or "")
        machine = Machine.resume(code.program, code.source, bytes(state.machine).decode(), limits=self._flow_limits)
        history = self._history
        history.position = history.since = state.position
        history.last_fact = flow.since
        # After a revision, time continues from the revision, and waits have the time that they had left.
        put_off = max(0, (flow.retry_at or 0) - (flow.finished_at or 0)) if flow.retry_at is not None else 0
        history.stamp = max(state.stamp, flow.retry_at or 0)
        self._turn_number, self._turns = flow.attempts, state.turns
        if reopened := reopened_in(flow):
            machine.reopen(place_of(location) for location in reopened)
            self._is_moved = True
        self._requests.restore(state, machine.open_requests(), put_off)
        return machine

    def _run(self, machine: Machine, budget: int, now: Micros) -> None:
        """Let the program run, and carry out what it asks for."""
        before = machine.instructions
        progress = machine.run(budget)
        self._unsaved_instructions += machine.instructions - before
        self._is_moved = True
        self._is_sliced = isinstance(progress, Sliced)
        self._requests.add(machine.take_requests())
        match progress:
            case FlowReturned(result):
                self._end(Finish(state=RunState.SUCCEEDED, result=result))
            case FlowRaised(error):
                self._end(Finish(state=RunState.FAILED, error=replace(error, locations=self._faults(machine))))
            case Continued(payload):
                self._end(ContinueAsNew(payload=payload))
            case Waiting() if not self._open.by_location and not self._requests.has_unsent:
                where = "; ".join(f"line {mark.line}: {mark.sentence}" for mark in machine.marks())
                self._block(WorkflowViolation(f"the flow waits for something that can never come ({where})"), now)
            case Waiting() | Sliced():
                self._drop_unasked_ends()

    def _faults(self, machine: Machine) -> tuple[str, ...]:
        """Return the locations of the failed children of this turn: those that were fed, and those that it awaited."""
        locations = dict.fromkeys(self._failed)
        for place, error in machine.raised_failures().items():
            failure = self._requests.failure(place, error)
            if failure is not None and failure.location not in locations:
                locations[failure.location] = None
                self.pending.add(failure, is_lazy=True)
        return tuple(locations)

    def _end(self, end: Finish | ContinueAsNew) -> None:
        """End the run or its generation. The last checkpoint carries out everything that the program asked for."""
        self._requests.carry_out(is_last=True)
        if isinstance(end, ContinueAsNew):
            self.pending.entries.clear()
            self.inbox.keep_cursors(self._history, self.pending, is_anew=True)
            # A fork is younger than its version, so the next generation could not find that version by time.
            self.pending.add(self._flow_entry(None, since=0), is_lazy=True)
        self.outcome = end

    def _drop_unasked_ends(self) -> None:
        """Consume the ends of children that the program no longer waits for. Adopted ones it may ask for later."""
        adopted = self._requests.adopted_ids
        ends = [end for end in self.inbox.unasked_ends() if end.name not in adopted]
        for end in ends:
            self.inbox.consume(end)
        if ends:
            self.pending.consume(end.number for end in ends)

    # Facts

    def _feed(self, machine: Machine, arrival: Arrival | None, operation: Operation, now: Micros) -> None:
        """Feed an arrival to the operation that waits for it, or feed the deadline of an operation."""
        entry = self._entry_of(arrival, operation, self._history.place_fact(now))
        stamp = self.stamp
        self.pending.add(entry)
        if entry.kind is EntryKind.CHILD and entry.state is EntryState.FAILED:
            self._failed.append(entry.location)
            self._requests.note_failure(operation, entry)
        if self.due_since is None:
            self.due_since = operation.deadline if arrival is None else arrival.at
        handle = self._requests.handle_of(operation)
        if isinstance(operation, ChildGroup):
            operation.take(entry)
            machine.settle_member(handle, member_place(entry), fed_outcome(operation, entry), stamp)
            if not operation.is_complete:
                return
        else:
            machine.settle(handle, fed_outcome(operation, entry), stamp)
        self._open.remove(operation)
        self._requests.forget(operation)
        if isinstance(operation, Reception) and operation.wait_kind is WaitKind.EVENT and entry.ref is not None:
            self.inbox.note_event(operation.names[0], int(entry.ref))
            self.inbox.keep_cursors(self._history, self.pending)

    def _settle_step(self, call: StepCall, settled: Settled, now: Micros) -> None:
        raise AssertionError("a flow has no steps")

    # Checkpoints

    def take_checkpoint(self, next: Next, now: Micros) -> Checkpoint:
        if isinstance(next, Block):
            # What was fed is not in the snapshot, so it has to stay in the inbox.
            self.pending.drop()
        elif isinstance(next, (Hold, Suspend, Release)) and self._machine is not None and self._is_moved:
            self._save(self._machine)
        checkpoint = super().take_checkpoint(next, now)
        self._requests.reset_units()
        if not self._forgotten:
            return checkpoint
        forgotten, self._forgotten = self._forgotten, 0
        return replace(checkpoint, forgotten=forgotten)

    def _save(self, machine: Machine) -> None:
        """Add the state of the machine to the checkpoint: as the newest snapshot, and as one that people can go to."""
        history = self._history
        since, stamp = history.last_fact, history.stamp
        position = history.place_snapshot()
        self._turn_number += 1
        self._turns = (*self._turns, position)
        if len(self._turns) >= 2 * KEPT_TURNS:
            self._turns = self._turns[-KEPT_TURNS:]
            self._forgotten = self._turns[0]
        state = FlowState(
            machine=msgspec.Raw(machine.snapshot().encode()),
            position=position,
            stamp=stamp,
            turns=self._turns,
            **self._requests.state_parts(machine.known_handles()),  # type: ignore[arg-type]  # fields by name
        )
        flow = self._flow_entry(state.encode(), since=since, attempts=self._turn_number)
        copy = replace(flow, location=f"{TURN_PREFIX}{self._turn_number}", state=EntryState.DONE, position=position)
        for entry in (copy, flow):
            self.pending.add(entry, is_lazy=True)
        self._is_moved = False
        self._unsaved_instructions = 0
        self._failed.clear()
        machine.snapshot_saved()

    def _flow_entry(self, state: str | None, *, since: int, attempts: int = 0) -> Entry:
        """Return the entry of the newest state. Without a state the program begins, in the same version."""
        stamp = self._history.stamp
        return Entry(
            location=FLOW_LOCATION,
            kind=EntryKind.SNAPSHOT,
            state=EntryState.STARTED,
            attempts=attempts,
            result=state,
            started_at=stamp,
            finished_at=stamp,
            ref=self._version,
            since=since,
        )

    def mark_committed(self, now: Micros) -> Standstill:
        if self.outcome is None:
            self._carry_out()
        return super().mark_committed(now)

    def _carry_out(self) -> None:
        """Carry out requests that no checkpoint had room for. The snapshot that has them is outdated then."""
        if self._requests.has_unsent:
            self._requests.carry_out()
            self._is_moved = True
