"""A watch that checks every write against the invariants I1 to I13, during a simulation and at its end.

The watch compares the state of the memory store before and after each operation, and trusts no answer. It knows what
must never happen. It does not know how holdfast prevents it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from holdfast.core import limits, rules
from holdfast.core.checkpoint import Block, Checkpoint, ContinueAsNew, Finish
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancel, Delete, Recover, Rewind, RunControl
from holdfast.core.entries import UNDO_PREFIX
from holdfast.core.location import is_for_people, is_within
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Holding, Run, TypeRule, Wait, WaitKind
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.schedules import NAME_TAG, SLOT_TAG
from holdfast.core.states import ENDS, TRANSITIONS, RunState
from holdfast.runner.operation import StepCall
from holdfast.runner.step_info import StepInfo
from holdfast.stores.memory.state import Record, State

CLAIMING = frozenset({"claim", "create"})
MISFITS = frozenset({"HistoryDiverged", "WorkflowViolation"})


class Violation(AssertionError):
    """An invariant was broken. `rule` is its number."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


@dataclass
class Shadow:
    """A run as it was after the last write, and facts about its life since it was last reopened."""

    run: Run
    entries: dict[str, Entry] = field(default_factory=dict)
    inbox: dict[int, Arrival] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    ends: int = 0
    settled: dict[tuple[int, str], str | None] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)
    claimed_token: int = 0

    def forget(self) -> None:
        """Drop the facts about a run that was reopened: it may now end and record results again."""
        self.ends = 0
        self.settled.clear()
        self.received.clear()


class Watch:
    """Checks a store's state around each operation.

    `now` is the store's time. `passed` is the furthest time so far, which setting the clock back does not reduce.
    `may_misfit` is True if a worker may have code that diverges from the history, or that does what only a step may do.
    """

    def __init__(
        self, state: State, now: Callable[[], Micros], passed: Callable[[], Micros], *, may_misfit: bool = False
    ) -> None:
        self._state = state
        self._may_misfit = may_misfit
        self._now = now
        self._passed = passed
        self._shadows: dict[str, Shadow] = {}
        self._takers: dict[str, str] = {}
        self._begun: dict[str, list[Micros]] = {}
        self.accepted: set[str] = set()
        """Ids of the runs whose start was answered."""
        self._rounds: Counter[tuple[str, int, str]] = Counter()
        self._keys: dict[tuple[str, int, str, int], str] = {}
        self._owners: dict[str, tuple[str, int, str, int]] = {}
        self._marks: dict[str, str] = {}
        self._children: dict[tuple[str, int, str], str] = {}
        self.writes = 0
        self.bodies: Counter[tuple[str, int, str]] = Counter()
        """Number of calls of each body, by run, generation and location."""
        self.told: dict[tuple[str, int], str] = {}
        """Location of the last result fed to the code before it did what only a step may do, by run and token."""
        self.misfits = 0
        """Number of times a run was blocked because of its code."""

    # Around an operation

    def wrote(self, name: str, args: Sequence[Any]) -> None:
        """Compare the state with the state before an operation of this name."""
        self.writes += 1
        request = args[0] if name == "control" else None
        checkpoints = {one.run_id: one for one in args[0]} if name == "checkpoint" else {}
        touched: set[str] = set()
        for run_id, record in self._state.records.items():
            shadow = self._shadows.get(run_id)
            if shadow is None:
                shadow = self._shadows[run_id] = Shadow(record.run)
                self._check_new(record.run, name)
            elif record.run is shadow.run and run_id not in checkpoints and self.writes % 16:
                continue
            touched.add(record.run.type)
            self._compare(shadow, record, name, request, checkpoints.get(run_id))
        if len(self._shadows) > len(self._state.records):
            for run_id in sorted(self._shadows.keys() - self._state.records.keys()):
                self._check_gone(self._shadows.pop(run_id).run, name)
        for type in sorted(touched):
            self._check_limits(type)
        self._check_queues()

    def stale(self, name: str, args: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
        """Return the state that an operation must not change, because its caller has lost the lease.

        If the caller has lost every run of the operation, this is the whole state: the operation must not create
        children, send messages or publish events either.
        """
        claims: Sequence[Checkpoint | Holding] = args[0] if name == "checkpoint" else args[1] if name == "renew" else ()
        lost = [claim.run_id for claim in claims if self._is_lost(claim)]
        kept = {run_id: self._possessions(self._state.records[run_id]) for run_id in lost}
        if lost and len(lost) == len(claims):
            kept[""] = self._everything()
        return kept

    def _is_lost(self, claim: Checkpoint | Holding) -> bool:
        record = self._state.records.get(claim.run_id)
        return record is not None and record.run.token != claim.token

    def check_stale(self, kept: dict[str, tuple[Any, ...]], name: str) -> None:
        """Check after the operation that it changed none of that state."""
        for run_id, before in kept.items():
            after = self._possessions(self._state.records[run_id]) if run_id else self._everything()
            if after != before:
                raise Violation(
                    "I5", f"{name} under an old token changed {f'run {run_id}' if run_id else 'other state'}"
                )

    def _possessions(self, record: Record) -> tuple[Any, ...]:
        run = record.run
        lease = run.ready_at if run.is_held else None
        told = (run.token, run.worker, lease, run.state, run.result, run.error)
        return *told, dict(record.entries), dict(record.inbox), record.waits, dict(record.values)

    def _everything(self) -> tuple[Any, ...]:
        records = {run_id: self._possessions(record) for run_id, record in self._state.records.items()}
        return records, self._state.event_count, self._state.letter_count

    # One run

    def _check_new(self, run: Run, name: str) -> None:
        is_cancelled = run.state is RunState.CANCELLED  # its parent cancelled it in the turn that started it
        slot = run.tags.get(SLOT_TAG) and f"slot {run.tags[SLOT_TAG]} of schedule {run.tags.get(NAME_TAG)}"
        for mark in (run.key and f"key {run.key}", slot):
            if mark and self._marks.setdefault(mark, run.id) != run.id:
                raise Violation("I1", f"{mark} has made two runs, {self._marks[mark]} and {run.id}")
        if (run.state in ENDS and not is_cancelled) or run.token > (1 if is_cancelled or name in CLAIMING else 0):
            raise Violation("I8", f"run {run.id} begins as {run.state} under token {run.token}")
        if run.worker is not None:
            self._shadows[run.id].claimed_token = run.token
            self._begun.setdefault(run.type, []).append(self._now())
        if run.tags.get("overlap") == "skip":
            self._check_alone(run)
        self._check_only_child(run)

    def _check_only_child(self, run: Run) -> None:
        """Check that a parent has one child per location, unless it was rewound to before it or the child is gone."""
        parent = self._state.records.get(run.parent_id or "")
        if parent is None or run.parent_location is None:
            return
        place = (parent.run.id, parent.run.generation, run.parent_location)
        twin = self._state.records.get(self._children.get(place, ""))
        if twin is not None and twin.run.deleted_at is None:
            raise Violation("I1", f"run {run.id} is a twin of {twin.run.id}: both are the child at {place}")
        self._children[place] = run.id

    def _check_alone(self, run: Run) -> None:
        """Check that a schedule with overlap `skip` starts a run only after its previous run has ended."""
        others = [record.run for record in self._state.records.values() if record.run.tags.get("overlap") == "skip"]
        for other in others:
            if other.id != run.id and not other.state.is_end:
                raise Violation("I9", f"{run.id} was begun before {other.id} of the same schedule had ended")

    def _check_gone(self, run: Run, name: str) -> None:
        """Check that a removed run had ended and that the retention of its type was over."""
        rule = self._state.types.get(run.type) or TypeRule(name=run.type)
        kept_until = (run.finished_at or 0) + (RUN_RETENTION if rule.retention is None else rule.retention)
        if name != "prune" or run.finished_at is None or kept_until > self._passed():
            raise Violation("I1", f"{name} removed run {run.id}, which was {run.state} and had to be kept")
        self.accepted.discard(run.id)
        self._marks.pop(f"key {run.key}", None)

    def _compare(
        self, shadow: Shadow, record: Record, name: str, request: RunControl | None, checkpoint: Checkpoint | None
    ) -> None:
        before, after = shadow.run, record.run
        is_reopening = isinstance(request, (Rewind, Recover)) and after.token != before.token
        if is_reopening:
            shadow.forget()
        if is_reopening and isinstance(request, Rewind):
            self._children = {at: child for at, child in self._children.items() if at[0] != after.id}
        if after is not before:
            self._check_move(shadow, before, after, name, is_reopening=is_reopening)
            self._check_holder(shadow, before, after, name)
            if after.token < before.token or after.generation < before.generation:
                raise Violation("I5", f"run {after.id} went back to token {after.token}")
        if checkpoint is not None and isinstance(checkpoint.next, Block) and after.state is RunState.BLOCKED:
            self._check_block(record, checkpoint, checkpoint.next)
        if rules.is_orphan(after, has_waits=bool(record.waits)):
            raise Violation("I1", f"run {after.id} is {after.state}, and nothing will ever wake it")
        if shadow.entries != record.entries:
            self._check_history(shadow, record, checkpoint, is_reopening=is_reopening)
            shadow.entries = dict(record.entries)
        if shadow.inbox != record.inbox:
            self._check_inbox(shadow, record, checkpoint, request)
            shadow.inbox = dict(record.inbox)
        shadow.run, shadow.waits = after, record.waits

    def _check_move(self, shadow: Shadow, before: Run, after: Run, name: str, *, is_reopening: bool) -> None:
        if before.state in ENDS and not is_reopening:
            told = (before.state, before.result, before.error, before.finished_at)
            if told != (after.state, after.result, after.error, after.finished_at):
                raise Violation("I2", f"run {after.id} was {before.state}, and {name} made it {after.state}")
        if after.state is not before.state and after.state not in TRANSITIONS[before.state]:
            raise Violation("I2", f"run {after.id} moved from {before.state} to {after.state}")
        if after.state in ENDS and (before.state not in ENDS or is_reopening):
            shadow.ends += 1
            if shadow.ends > 1:
                raise Violation("I2", f"run {after.id} ended {shadow.ends} times")
            self._check_audit_of_end(after)

    def _check_block(self, record: Record, checkpoint: Checkpoint, block: Block) -> None:
        """Check that only wrong code blocks a run, and that results fed to the code before are recorded."""
        run = record.run
        if block.error.type not in MISFITS:
            return
        self.misfits += 1
        if not self._may_misfit:
            raise Violation("I13", f"run {run.id} is blocked though its code has not changed: {block.error.message}")
        told = self.told.get((run.id, checkpoint.token))
        if told is not None and (told not in record.entries or not record.entries[told].is_settled):
            raise Violation("I13", f"run {run.id} is blocked after {told}, but the result of {told} is not recorded")

    def _check_audit_of_end(self, run: Run) -> None:
        events = [fact.event for fact in self._state.records[run.id].audit]
        if run.state.value not in events[-3:]:
            raise Violation("I12", f"run {run.id} is {run.state}, but its audit ends with {events[-3:]}")

    def _check_holder(self, shadow: Shadow, before: Run, after: Run, name: str) -> None:
        if name == "control" and before.worker is not None and after.worker is None and after.token == before.token:
            raise Violation("I5", f"run {after.id} was taken from {before.worker}, which may still write")
        if after.worker is None or (after.worker == before.worker and after.token == before.token):
            return
        shadow.claimed_token = after.token
        if name not in CLAIMING or after.token <= before.token:
            raise Violation("I5", f"{name} gave run {after.id} to {after.worker} under token {after.token}")
        if before.ready_at is None or before.ready_at > self._now():
            when = "never" if before.ready_at is None else f"in {(before.ready_at - self._now()) / 1e6:.1f} s"
            raise Violation("I5", f"run {after.id} was claimed, but it may be claimed {when}")
        if after.start_at > self._passed():
            raise Violation("I7", f"run {after.id} was begun {(after.start_at - self._now()) / 1e6:.1f} s too early")
        if rules.is_suspect(before):
            held = [other.run for other in self._state.records.values() if other.run.worker == after.worker]
            if sum(run.crashes >= rules.SUSPECT_CRASHES for run in held) > 1:
                raise Violation(
                    "I11", f"{after.worker} was given {after.id}, and already holds another run that may kill workers"
                )
        if before.token == 0:
            self._begun.setdefault(after.type, []).append(self._now())

    # History

    def _check_history(
        self, shadow: Shadow, record: Record, checkpoint: Checkpoint | None, *, is_reopening: bool
    ) -> None:
        run = record.run
        if is_reopening:
            self._count_rounds(run, [entry for at, entry in shadow.entries.items() if at not in record.entries])
            return
        for location, was in shadow.entries.items():
            entry = record.entries.get(location)
            if entry is None and not _may_forget(was, checkpoint):
                raise Violation("I3", f"run {run.id} has lost its entry at {location}")
            if entry is not None and was.is_settled and entry != was and run.generation == shadow.run.generation:
                raise Violation("I3", f"run {run.id}: the record at {location} changed from {was} to {entry}")
        positions = [entry.position for entry in record.entries.values() if entry.is_settled]
        if len(set(positions)) < len(positions):
            raise Violation("I3", f"run {run.id} has two records at one position")
        for location, entry in record.entries.items():
            if shadow.entries.get(location) == entry:
                continue
            if entry.error is not None and entry.error.type == "CancelledError":
                raise Violation("I2", f"run {run.id} has recorded the stop of its worker as the outcome of {location}")
            if entry.is_settled:
                self._check_settled(shadow, run, location, entry)

    def _count_rounds(self, run: Run, dropped: Sequence[Entry]) -> None:
        """Count completed undos. A reopened run executes undone steps again, each time under another key."""
        for entry in dropped:
            if entry.kind is EntryKind.UNDO and entry.state is EntryState.DONE:
                self._rounds[run.id, run.generation, entry.location.removeprefix(UNDO_PREFIX)] += 1

    def _check_settled(self, shadow: Shadow, run: Run, location: str, entry: Entry) -> None:
        place = (run.generation, location)
        if place in shadow.settled:
            raise Violation("I3", f"run {run.id} has recorded {location} twice")
        shadow.settled[place] = entry.result
        if entry.state is EntryState.TIMED_OUT or (entry.kind is EntryKind.TIMER and entry.state is EntryState.DONE):
            for wait in shadow.waits:
                if wait.location == location and (wait.deadline or 0) > self._passed():
                    early = ((wait.deadline or 0) - self._passed()) / 1e6
                    raise Violation("I7", f"run {run.id}: the timer {location} fired {early:.3f} s too early")

    # Inbox

    def _check_inbox(
        self, shadow: Shadow, record: Record, checkpoint: Checkpoint | None, request: RunControl | None
    ) -> None:
        run = record.run
        for number, arrival in record.inbox.items():
            if number in shadow.inbox or arrival.kind is not WaitKind.MESSAGE or arrival.ref is None:
                continue
            twins = [one for one in record.inbox.values() if one.ref == arrival.ref and one.kind is WaitKind.MESSAGE]
            if len(twins) > 1 or (arrival.ref in shadow.received and not isinstance(request, (Rewind, Recover))):
                raise Violation("I6", f"run {run.id} got message {arrival.ref} twice")
        gone = [arrival for number, arrival in shadow.inbox.items() if number not in record.inbox]
        consumed = set(checkpoint.consumed) if checkpoint is not None else set()
        is_over = run.state in ENDS or isinstance(request, (Rewind, Recover, Cancel, Delete))
        is_renewed = checkpoint is not None and isinstance(checkpoint.next, ContinueAsNew)
        for arrival in gone:
            if arrival.number in consumed:
                self._check_order(run, arrival, record.inbox)
                if arrival.ref is not None:
                    shadow.received.add(arrival.ref)
                if arrival.is_exclusive:
                    self._check_taker(run, arrival)
            elif is_over or arrival.is_exclusive or (is_renewed and arrival.kind is not WaitKind.MESSAGE):
                continue  # the run can no longer ask for it, or it went back to its queue
            else:
                raise Violation("I6", f"run {run.id} has lost {arrival.kind.value} {arrival.name} before reading it")

    def _check_order(self, run: Run, arrival: Arrival, left: dict[int, Arrival]) -> None:
        if arrival.kind not in (WaitKind.MESSAGE, WaitKind.EVENT):
            return
        for number, other in left.items():
            if number < arrival.number and other.name == arrival.name and other.kind is arrival.kind:
                raise Violation("I6", f"run {run.id} received {arrival.name} number {arrival.number} before {number}")

    def _check_taker(self, run: Run, arrival: Arrival) -> None:
        taker = self._takers.setdefault(str(arrival.ref), run.id)
        if taker != run.id:
            raise Violation("I6", f"queue event {arrival.ref} was received by both {taker} and {run.id}")

    def _check_queues(self) -> None:
        """Check that no run sleeps on a topic whose queue has a pending event."""
        for topic, published in self._state.events.items():
            if not any(event.state == "pending" for event in published):
                continue
            for record in self._state.records.values():
                is_asleep = record.run.state is RunState.SUSPENDED and record.run.ready_at is None
                if is_asleep and any(w.kind is WaitKind.EVENT and topic in w.names for w in record.waits):
                    raise Violation("I6", f"run {record.run.id} sleeps although queue {topic} has an event for it")

    # Limits

    def _check_limits(self, type: str) -> None:
        rule = self._state.types.get(type) or TypeRule(name=type)
        if not rule.is_limited:
            return
        held = [record.run for record in self._state.records.values() if record.run.type == type and record.run.worker]
        if rule.concurrency is not None and len(held) > rule.concurrency:
            raise Violation("I9", f"{len(held)} runs of {type} are held; the limit is {rule.concurrency}")
        for tag, count in rule.per_key.items():
            for key, number in Counter(run.tags.get(tag) for run in held).items():
                if key is not None and number > count:
                    raise Violation("I9", f"{number} runs of {type} with {tag}={key} are held; the limit is {count}")
        self._check_parked(rule)
        if rule.rate is not None:
            begun = self._begun.get(type, [])
            for first, last in zip(begun, begun[rule.rate.count :], strict=False):
                if last - first < rule.rate.period:
                    raise Violation("I9", f"more than {rule.rate.count} runs of {type} began in one period")

    def _check_parked(self, rule: TypeRule) -> None:
        """Check that no run is parked while all its slots are free. Rate limits are exempt: they park runs by time."""
        for record in self._state.records.values():
            if rule.rate is not None or record.run.type != rule.name or limits.parked_at(record.waits) is None:
                continue
            needed = limits.slots_of(rule, record.run)
            if all(len(self._state.slots.get(slot, ())) < places for slot, places in needed.items()):
                raise Violation("I9", f"run {record.run.id} waits for a slot although one of each is free: {needed}")

    # Bodies

    def is_holder(self, worker_id: str, info: StepInfo) -> bool:
        """Return True if a worker holds the run of a step. A worker may not know yet that it has lost the run."""
        record = self._state.records.get(info.run_id)
        return record is not None and record.run.worker == worker_id and record.run.generation == info.generation

    def body_begins(self, info: StepInfo, call: StepCall, *, is_stale: bool) -> None:
        """Check a call of a body: not too early or too often, not after its record, under the one key of its round."""
        place = (info.run_id, info.generation, info.location)
        self.bodies[place] += 1
        self._check_key(place, info.idempotency_key, is_stale=is_stale)
        if info.attempt > call.options.retry.max_attempts:
            raise Violation(
                "I11", f"{place} is attempted {info.attempt} times; the limit is {call.options.retry.max_attempts}"
            )
        if is_stale:
            return
        entry = self._state.records[info.run_id].entries.get(info.location)
        if entry is not None and entry.is_settled:
            raise Violation("I3", f"{place} is executed although it is recorded")
        due = entry.retry_at if entry is not None and entry.state is EntryState.RETRYING else None
        if due is not None and due > self._passed():
            raise Violation("I7", f"{place} is tried again {(due - self._passed()) / 1e6:.3f} s too early")

    def _check_key(self, place: tuple[str, int, str], key: str, *, is_stale: bool) -> None:
        """Check that all attempts of a step have one key until the step is undone, and then another."""
        run_id, generation, location = place
        turn = (*place, self._rounds[run_id, generation, location.removeprefix(UNDO_PREFIX)])
        owner = self._owners.setdefault(key, turn)
        if owner[:3] != place or (owner != turn and not is_stale):
            raise Violation("I10", f"{turn} has the key of {owner}")
        # A worker that has lost the run may not know that the step was undone since.
        if not is_stale and self._keys.setdefault(turn, key) != key:
            raise Violation("I10", f"{place} was called under another key: {key}")

    # The final check

    def finish(self) -> None:
        """Check the final state: accepted runs exist, ended runs hold nothing, audit and owners agree with the runs."""
        for run_id in self.accepted:
            if run_id not in self._state.records:
                raise Violation("I1", f"run {run_id} was accepted but does not exist")
        for run_id, record in self._state.records.items():
            self._compare(self._shadows[run_id], record, "the end", None, None)
            if record.run.state in ENDS:
                self._check_ended(record)
            self._check_audit(record)
        self._check_belongings()

    def _check_belongings(self) -> None:
        """Check that the owners of slots, keys and handed events exist and know of them."""
        for slot, holders in self._state.slots.items():
            for run_id in holders:
                holder = self._state.records.get(run_id)
                if holder is None or slot not in holder.run.slots:
                    raise Violation("I8", f"slot {slot} names run {run_id} as a holder, but the run disagrees")
        for key, run_id in self._state.keys.items():
            if run_id not in self._state.records:
                raise Violation("I8", f"key {key} names run {run_id}, which does not exist")
        for published in chain.from_iterable(self._state.events.values()):
            holder = self._state.records.get(published.holder or "")
            if published.state == "handed" and (holder is None or holder.run.state in ENDS):
                raise Violation(
                    "I8",
                    f"event {published.number} was handed to {published.holder}, which has ended or does not exist",
                )

    def _check_ended(self, record: Record) -> None:
        run = record.run
        left = [name for name in ("worker", "ready_at") if getattr(run, name) is not None]
        left += ["slots"] if run.slots else []
        left += ["waits"] if record.waits else []
        if left:
            raise Violation("I8", f"run {run.id} is {run.state} but still has {', '.join(left)}")

    def _check_audit(self, record: Record) -> None:
        run = record.run
        tokens = [int(fact.data["token"]) for fact in record.audit if fact.event == "claimed"]
        claimed = self._shadows[run.id].claimed_token
        if tokens != sorted(set(tokens)) or (tokens[-1] if tokens else 0) != claimed:
            raise Violation("I12", f"run {run.id} was last claimed under token {claimed}, but its audit says {tokens}")
        told = [fact.event for fact in record.audit if fact.event in {state.value for state in ENDS}]
        if run.state in ENDS and (not told or told[-1] != run.state.value):
            raise Violation("I12", f"run {run.id} is {run.state}, but its audit says {told[-1:] or 'nothing'}")


def _may_forget(entry: Entry, checkpoint: Checkpoint | None) -> bool:
    """Return True if a checkpoint may remove an entry."""
    if checkpoint is None:
        return False
    if isinstance(checkpoint.next, (ContinueAsNew, Finish)):
        return True
    if is_for_people(entry.location) and 0 < entry.position < checkpoint.forgotten:
        return True
    return any(is_within(entry.location, scope) for scope in checkpoint.pruned)
