"""The memory store: the model that every other store must answer like. It keeps nothing after the process.

Written for reading. Each public operation is atomic because it never awaits; the lock is there only for
the heartbeat, which renews from its own thread.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import (
    Checkpoint,
    Claimed,
    ClaimRequest,
    Control,
    Created,
    CreatedRun,
    LeaseRequest,
    Verdict,
    Verdicts,
)
from holdfast.core.clock import Clock, Micros, SystemClock
from holdfast.core.errors import RunNotFound
from holdfast.core.hint import Hint, News
from holdfast.core.model import (
    EVENT_RETENTION,
    RECEIPT_RETENTION,
    Arrival,
    AuditFact,
    Entry,
    Event,
    Holding,
    Intent,
    Lease,
    Message,
    Run,
    Wait,
    WaitKind,
    WorkerInfo,
)
from holdfast.core.ports import Details, Finding, Query, SchemaStatus, Sent
from holdfast.core.states import RunState

_AUDIT_KEPT = 100
_AUDIT_ROUTINE = frozenset({"claimed", "suspended", "woken"})

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass
class _Record:
    """A run with all that belongs to it."""

    run: Run
    entries: dict[str, Entry] = field(default_factory=dict)
    inbox: dict[int, Arrival] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = field(default_factory=dict)
    receipts: dict[str, Micros] = field(default_factory=dict)
    audit: list[AuditFact] = field(default_factory=list)

    def satisfies(self, wait: Wait) -> bool:
        """Whether what a wait waits for is there already. A wait takes one event; the next one fetches the next."""
        return any(rules.accepts(wait, arrival) for arrival in self.inbox.values())

    def details(self) -> Details:
        return Details(run=self.run, waits=self.waits, values=dict(self.values))


@dataclass
class _Published:
    """An event that was emitted, under its number."""

    number: int
    event: Event
    at: Micros
    reached: int = 0

    def arrival(self, run: Run | None = None) -> Arrival:
        return rules.event_arrival(self.number, self.event.topic, self.event.payload, self.at, run)


def _atomic(
    operation: Callable[Concatenate[MemoryStore, _P], _R],
) -> Callable[Concatenate[MemoryStore, _P], Coroutine[Any, Any, _R]]:
    """Make a plain method an operation of the port: it never awaits, and afterwards whoever listens is told."""

    @wraps(operation)
    async def atomic(self: MemoryStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._lock:
            try:
                return operation(self, *args, **kwargs)
            finally:
                self._tell()

    return atomic


class MemoryStore:
    """Runs in a dictionary, rules from core, nothing else."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._records: dict[str, _Record] = {}
        self._keys: dict[str, str] = {}
        self._children: dict[str, list[str]] = defaultdict(list)
        self._events: dict[str, list[_Published]] = defaultdict(list)
        self._event_count = 0
        self._workers: dict[str, WorkerInfo] = {}
        self._listeners: list[tuple[asyncio.AbstractEventLoop, Callable[[Hint], None]]] = []
        self._news = News()

    async def open(self, *, migrate: bool = True) -> None: ...

    async def close(self) -> None: ...

    def schema(self) -> SchemaStatus:
        return SchemaStatus(current=1, wanted=1)

    async def now(self) -> Micros:
        return self._clock.now()

    # Starting

    @_atomic
    def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        now = self._clock.now()
        existing = self._existing(intents)
        return Created(
            runs=tuple(
                CreatedRun(run_id=known, created=False)
                if (known := existing[index]) is not None
                else self._create_one(intent, lease, now)
                for index, intent in enumerate(intents)
            ),
            now=now,
        )

    def _existing(self, intents: Sequence[Intent]) -> list[str | None]:
        """For each intent the run that already stands for it, if any. Raises before anything is written."""
        first: dict[str, Intent] = {}
        made: set[str] = set()
        found: list[str | None] = []
        for index, intent in enumerate(intents):
            if intent.id in self._records or intent.id in made:
                found.append(intent.id)
                continue
            if intent.key is None:
                made.add(intent.id)
                found.append(None)
                continue
            if (twin := first.get(intent.key)) is not None:
                holder, known = rules.new_run(twin, 0), twin.id
                verdict = rules.key_verdict(holder, replace(intent, reuse="never"))
            elif intent.key in self._keys:
                known = self._keys[intent.key]
                verdict = rules.key_verdict(self._records[known].run, intent)
            else:
                known, verdict = "", "free"
            if verdict == "conflict":
                raise rules.key_conflict(intent.key, known, index)
            if verdict == "free":
                first[intent.key] = intent
                made.add(intent.id)
            found.append(known if verdict == "same" else None)
        return found

    def _create_one(self, intent: Intent, lease: LeaseRequest | None, now: Micros) -> CreatedRun:
        run = rules.new_run(intent, now)
        record = self._records[run.id] = _Record(run)
        if run.key is not None:
            self._take_key(run.key, run.id)
        if run.parent_id is not None:
            self._children[run.parent_id].append(run.id)
        if lease is None or run.ready_at is None or run.ready_at > now:
            self._news.ready.add(run.type)
            return CreatedRun(run_id=run.id, created=True)
        return CreatedRun(run_id=run.id, created=True, lease=self._lease(record, lease, now))

    def _take_key(self, key: str, run_id: str) -> None:
        if (holder := self._keys.get(key)) is not None:
            record = self._records[holder]
            record.run = replace(record.run, key=None)
        self._keys[key] = run_id

    # Claiming

    @_atomic
    def claim(self, request: ClaimRequest) -> Claimed:
        now = self._clock.now()
        types = frozenset(request.types)
        queued = [r for r in self._records.values() if r.run.ready_at is not None and r.run.type in types]
        if request.is_repeat:
            won = [r for r in queued if r.run.claim_id == request.id and r.run.worker == request.worker]
            if won:
                return Claimed(leases=tuple(self._lease_of(r) for r in won), next_ready_at=now, now=now)
        due = [r for r in queued if (r.run.ready_at or 0) <= now]
        chosen: list[_Record] = []
        may_suspect = request.may_suspect
        for record in heapq.nsmallest(len(due), due, key=_claim_order):
            if len(chosen) == request.limit:
                break
            if rules.is_suspect(record.run):
                if not may_suspect:
                    continue
                may_suspect = False
            chosen.append(record)
        leases = tuple(self._lease(record, request, now) for record in chosen)
        others = [r for r in queued if r.run.worker != request.worker]
        rest = min((r.run.ready_at or 0 for r in others), default=None)
        return Claimed(leases=leases, next_ready_at=rest, now=now)

    def _lease(self, record: _Record, by: ClaimRequest | LeaseRequest, now: Micros) -> Lease:
        before = record.run
        record.run = rules.claimed(before, by, now)
        self._note(record, rules.audit_of_claim(before, record.run, now))
        return self._lease_of(record)

    def _lease_of(self, record: _Record) -> Lease:
        return Lease(run=record.run, entries=_in_order(record.entries.values()), arrivals=tuple(record.inbox.values()))

    # Writing

    @_atomic
    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        now = self._clock.now()
        return Verdicts(verdicts=tuple(self._apply(one, now) for one in checkpoints), now=now)

    def _apply(self, checkpoint: Checkpoint, now: Micros) -> Verdict:
        record = self._records.get(checkpoint.run_id)
        verdict = rules.judge(record.run if record else None, checkpoint)
        if record is None or verdict == "lost":
            return Verdict(run_id=checkpoint.run_id, is_lost=True, is_held=False)
        if verdict == "applied":
            return Verdict(run_id=checkpoint.run_id, is_held=False)

        for entry in checkpoint.entries:
            self._record(record, entry, now)
        self._consume(record, checkpoint.consumed, now)
        if checkpoint.waits is not None:
            record.waits = checkpoint.waits
            self._collect_published(record, now)
        self._send_out(record, checkpoint, now)
        record.values |= checkpoint.values
        if record.run.token != checkpoint.token:  # it cancelled itself, or something that took it along
            return Verdict(run_id=checkpoint.run_id, is_held=False)

        # Waits that did not change have deadlines all the same.
        self._move(record, rules.advanced(record.run, replace(checkpoint, waits=record.waits), now), now)
        return self._verdict(record, checkpoint.seen)

    def _consume(self, record: _Record, numbers: Sequence[int], now: Micros) -> None:
        for number in numbers:
            arrival = record.inbox.pop(number, None)
            if arrival is not None and arrival.kind is WaitKind.MESSAGE and arrival.ref is not None:
                record.receipts[arrival.ref] = now

    def _send_out(self, record: _Record, checkpoint: Checkpoint, now: Micros) -> None:
        """Everything a checkpoint does to other runs."""
        for intent in checkpoint.children:
            if intent.id not in self._records:
                self._create_one(intent, None, now)
        for message in checkpoint.messages:
            if (refused := self._deliver_message(message, now).refused) is not None:
                fact = rules.audit_of_drop(checkpoint.run_id, message, refused, now)
                if all(fact.event != known.event or fact.data != known.data for known in record.audit):
                    self._note(record, fact)
        for event in checkpoint.events:
            self._publish(event, now)
        for run_id in checkpoint.cancels:
            self._cancel(run_id, "cancelled by its parent", now)

    def _record(self, record: _Record, entry: Entry, now: Micros) -> None:
        recorded = record.entries.get(entry.location)
        if recorded is None or rules.supersedes(entry, recorded):
            record.entries[entry.location] = entry
            self._note(record, rules.audit_of_entry(record.run.id, entry, now))

    def _move(self, record: _Record, after: Run, now: Micros) -> None:
        """Give a run its next state, and do all that an end entails."""
        before, record.run = record.run, after
        self._note(record, rules.audit_of_move(before, after, now))
        if after.state.is_end:
            self._bury(record, now)
        elif not after.is_held and after.ready_at is not None and after.ready_at <= now:
            self._news.ready.add(after.type)

    def _bury(self, record: _Record, now: Micros) -> None:
        run = record.run
        record.waits = ()
        record.inbox.clear()
        self._news.ended.add(run.id)
        for child_id in self._children.pop(run.id, ()):
            if self._records[child_id].run.on_close == "cancel":
                self._cancel(child_id, "its parent ended", now)
        if run.parent_id is not None and (parent := self._records.get(run.parent_id)) is not None:
            self._deliver(parent, rules.child_end(run, parent.run.arrivals + 1, now), now)

    # Arriving

    @_atomic
    def send(self, messages: Sequence[Message]) -> Sequence[Sent]:
        now = self._clock.now()
        return [self._deliver_message(message, now) for message in messages]

    def _deliver_message(self, message: Message, now: Micros) -> Sent:
        run_id = message.run_id if message.key is None else self._keys.get(message.key)
        record = self._records.get(run_id) if run_id is not None else None
        if record is None:
            return Sent(run_id=run_id, refused="unknown")
        if record.run.state.is_end:
            return Sent(run_id=run_id, refused="finished")
        record.receipts = {id: at for id, at in record.receipts.items() if at > now - RECEIPT_RETENTION}
        unread = {arrival.ref for arrival in record.inbox.values() if arrival.kind is WaitKind.MESSAGE}
        is_known = message.id in record.receipts or message.id in unread
        if not is_known:
            self._deliver(record, rules.message_arrival(message, record.run, now), now)
        return Sent(run_id=run_id)

    @_atomic
    def emit(self, events: Sequence[Event]) -> Sequence[int]:
        now = self._clock.now()
        return [self._publish(event, now) for event in events]

    def _publish(self, event: Event, now: Micros) -> int:
        kept = [one for one in self._events[event.topic] if one.at > now - EVENT_RETENTION]
        self._events[event.topic] = kept
        for published in kept:
            if published.event.id == event.id:
                return published.reached
        self._event_count += 1
        published = _Published(self._event_count, event, now)
        kept.append(published)
        for record in self._records.values():
            if any(rules.accepts(wait, published.arrival()) and not record.satisfies(wait) for wait in record.waits):
                self._deliver(record, published.arrival(record.run), now)
                published.reached += 1
        return published.reached

    def _collect_published(self, record: _Record, now: Micros) -> None:
        """Hand a run the first event it missed on each topic it has begun to wait for."""
        for wait in record.waits:
            if wait.kind is not WaitKind.EVENT or record.satisfies(wait):
                continue
            for published in self._events[wait.names[0]]:
                is_kept = record.run.created_at <= published.at and published.at > now - EVENT_RETENTION
                if is_kept and published.number > wait.after:
                    self._deliver(record, published.arrival(record.run), now)
                    break

    def _deliver(self, record: _Record, arrival: Arrival, now: Micros) -> None:
        before = record.run
        if before.state.is_end:
            return
        record.inbox[arrival.number] = arrival
        is_awaited = any(rules.accepts(wait, arrival) for wait in record.waits)
        record.run = rules.delivered(before, now, is_awaited=is_awaited)
        if record.run.is_held:
            self._news.arrived.add(record.run.id)
        elif record.run.ready_at != before.ready_at:
            self._note(record, rules.audit_of_wake(record.run, arrival, now))
            self._news.ready.add(record.run.type)

    # Control

    @_atomic
    def control(self, run_id: str, request: Control) -> bool:
        if run_id not in self._records:
            raise RunNotFound(f"there is no run {run_id}")
        return self._cancel(run_id, request.reason, self._clock.now())

    def _cancel(self, run_id: str, reason: str, now: Micros) -> bool:
        record = self._records.get(run_id)
        if record is None or record.run.state.is_end:
            return False
        if record.run.is_held:
            self._news.taken.add(run_id)
        self._move(record, rules.cancelled(record.run, reason, now), now)
        return True

    # Workers

    def renew(self, worker: WorkerInfo, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        with self._lock:
            now = self._clock.now()
            known = self._workers.get(worker.id)
            started_at = known.started_at if known else now
            self._workers[worker.id] = replace(worker, started_at=started_at, heartbeat_at=now)
            verdicts = tuple(self._look(holding) for holding in holdings)
            for verdict in verdicts:
                if not verdict.is_lost:
                    record = self._records[verdict.run_id]
                    record.run = replace(record.run, ready_at=now + lease)
            return Verdicts(verdicts=verdicts, now=now)

    @_atomic
    def retire(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)

    def _look(self, holding: Holding) -> Verdict:
        record = self._records.get(holding.run_id)
        if record is None or record.run.token != holding.token or not record.run.is_held:
            return Verdict(run_id=holding.run_id, is_lost=True, is_held=False)
        return self._verdict(record, holding.seen)

    def _verdict(self, record: _Record, seen: int) -> Verdict:
        if not record.run.is_held:
            return Verdict(run_id=record.run.id, is_held=False)
        newer = tuple(arrival for arrival in record.inbox.values() if arrival.number > seen)
        return Verdict(run_id=record.run.id, arrivals=newer)

    # Reading

    async def get(self, run_id: str) -> Details | None:
        record = self._records.get(run_id)
        return record.details() if record else None

    async def find(self, key: str) -> str | None:
        return self._keys.get(key)

    async def list(self, query: Query) -> Sequence[Details]:
        with self._lock:
            matching = [record for record in self._records.values() if query.admits(record.run)]
        newest_first = sorted(matching, key=lambda r: (r.run.created_at, r.run.id), reverse=True)
        return [record.details() for record in newest_first[: query.limit]]

    async def history(self, run_id: str) -> Sequence[Entry]:
        record = self._records.get(run_id)
        return _in_order(record.entries.values()) if record else ()

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        record = self._records.get(run_id)
        return tuple(record.audit) if record else ()

    async def ends(self, run_ids: Sequence[str]) -> Sequence[Run]:
        known = [self._records[run_id].run for run_id in run_ids if run_id in self._records]
        return [run for run in known if run.state.is_end]

    async def look(self, holdings: Sequence[Holding]) -> Verdicts:
        with self._lock:
            return Verdicts(verdicts=tuple(self._look(holding) for holding in holdings), now=self._clock.now())

    async def counts(self) -> dict[str, dict[RunState, int]]:
        counted: dict[str, dict[RunState, int]] = defaultdict(lambda: defaultdict(int))
        for record in list(self._records.values()):
            counted[record.run.type][record.run.state] += 1
        return {type: dict(states) for type, states in sorted(counted.items())}

    async def workers(self) -> Sequence[WorkerInfo]:
        return sorted(self._workers.values(), key=lambda worker: worker.id)

    async def orphans(self, limit: int) -> Sequence[str]:
        lost = (r.run.id for r in self._records.values() if rules.is_orphan(r.run, has_waits=bool(r.waits)))
        return [run_id for run_id, _ in zip(lost, range(limit), strict=False)]

    async def check(self) -> Sequence[Finding]:
        return [Finding(level="warning", subject="store", text="memory:// keeps nothing after the process ends")]

    # Telling

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        subscription = (asyncio.get_running_loop(), listener)
        self._listeners.append(subscription)
        return lambda: self._listeners.remove(subscription) if subscription in self._listeners else None

    def _tell(self) -> None:
        hint, self._news = self._news.hint(), News()
        if hint is not None:
            for loop, listener in self._listeners:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(listener, hint)

    def _note(self, record: _Record, fact: AuditFact | None) -> None:
        if fact is None:
            return
        record.audit.append(fact)
        if fact.event in _AUDIT_ROUTINE:
            routine = [one for one in record.audit if one.event in _AUDIT_ROUTINE]
            if len(routine) > _AUDIT_KEPT:
                record.audit.remove(routine[0])


def _claim_order(record: _Record) -> tuple[int, Micros, str]:
    return record.run.priority, record.run.ready_at or 0, record.run.id


def _in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda e: (not e.is_settled, e.position, e.location)))
