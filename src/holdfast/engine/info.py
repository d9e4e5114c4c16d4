"""What users see of a run: plain values with datetimes, made from what the store keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.audit import BY, REQUEST
from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, Micros, instant, micros, moment
from holdfast.core.codec import decode_any, json_flaw
from holdfast.core.cron import zone_of
from holdfast.core.errors import ErrorRecord, Unreadable
from holdfast.core.model import (
    Arrival,
    AuditFact,
    CatchUp,
    DeadLetter,
    DeadReason,
    Entry,
    EntryKind,
    EntryState,
    Overlap,
    Run,
    Schedule,
    Topic,
    TopicMode,
    TypeRule,
    Wait,
    WaitKind,
    WorkerRecord,
)
from holdfast.core.questions import Details
from holdfast.core.received import received_in
from holdfast.core.schedules import UPCOMING, next_slots
from holdfast.core.states import RunState
from holdfast.core.unreadable import joined, reason_of, told


class Flaws:
    """What of a row could not be decoded, and why."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    @property
    def told(self) -> str | None:
        return told(self._known) or None

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """The value of a field; None if it cannot be made."""
        try:
            return make()
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self._known[name] = reason_of(error)
            return None

    def json(self, name: str, text: str | None) -> Any:
        """The value of a field that is kept as JSON."""
        if text is None:
            return None
        try:
            return decode_any(text)
        except Unreadable:
            self._known[name] = json_flaw(text) or ""
            return None

    def moment(self, name: str, at: Micros | None) -> Any:
        """The value of a field that is kept as an instant. One that is None was told of before."""
        return None if at is None else self.kept(name, lambda: moment(at))

    def nearest(self, name: str, at: Micros) -> datetime:
        """Likewise, for a field that is sorted by or calculated with: the nearest date instead of none."""
        self.moment(name, at)
        return moment(min(max(at, FIRST_INSTANT), LAST_INSTANT))

    def later(self, name: str, at: Micros | None) -> Any:
        """Likewise; None also for one that is no date any more, such as the end of a sleep for ever."""
        return None if at is None or at > LAST_INSTANT else self.moment(name, at)


class WaitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Something a run waits for: `time`, `retry`, `message`, `event`, `child`, `children` or `slot`, and which."""

    location: str
    kind: WaitKind
    names: tuple[str, ...]
    since: datetime
    deadline: datetime | None
    count: int = 0


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stood when it was read.

    `attempt` counts how often it was taken up anew: 1, and one more after each crash, block or reopening. How often a
    step was tried is told by `attempts` of its `EntryInfo`.

    `unreadable` says why its row in the store cannot be decoded, because somebody edited it by hand, for one. Then the
    fields that could not be decoded are `None`, whatever their type.
    """

    id: str
    type: str
    state: RunState
    payload: Any
    result: Any
    error: ErrorRecord | None
    key: str | None
    priority: int
    tags: dict[str, str]
    attempt: int
    generation: int
    parent_id: str | None
    worker: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    ready_at: datetime | None
    deleted_at: datetime | None
    waits: tuple[WaitInfo, ...]
    unreadable: str | None = None

    @classmethod
    def of(cls, details: Details) -> RunInfo:
        run, flaws = details.run, Flaws()
        return cls(
            id=run.id,
            type=run.type,
            state=run.state,
            payload=flaws.json("payload", run.input),
            result=flaws.json("result", run.result),
            error=run.error,
            key=run.key,
            priority=run.priority,
            tags=run.tags,
            attempt=run.attempt,
            generation=run.generation,
            parent_id=run.parent_id,
            worker=run.worker,
            created_at=flaws.moment("created_at", run.created_at),
            updated_at=flaws.moment("updated_at", run.updated_at),
            finished_at=flaws.later("finished_at", run.finished_at),
            ready_at=flaws.later("ready_at", run.ready_at),
            deleted_at=flaws.later("deleted_at", run.deleted_at),
            waits=tuple(_wait_info(wait, flaws) for wait in details.waits),
            unreadable=joined([details.unreadable, flaws.told]),
        )


class EntryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One operation in a run's history. `unreadable`: why its result could not be decoded, and is `None`."""

    location: str
    kind: EntryKind
    state: EntryState
    attempts: int
    result: Any
    error: ErrorRecord | None
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    ref: str | None
    unreadable: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> EntryInfo:
        flaws = Flaws()
        return cls(
            location=entry.location,
            kind=entry.kind,
            state=entry.state,
            attempts=entry.attempts,
            result=flaws.kept("result", lambda: _result(entry)),
            error=entry.error,
            started_at=flaws.nearest("started_at", entry.started_at),
            finished_at=flaws.later("finished_at", entry.finished_at),
            retry_at=flaws.later("retry_at", entry.retry_at),
            ref=entry.ref,
            unreadable=flaws.told,
        )


class AuditInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of a run's life: what happened, when, and the particulars."""

    event: str
    at: datetime
    data: dict[str, str | int]

    @property
    def by(self) -> str | None:
        """Who asked for it, if somebody did and the audit knows."""
        by = self.data.get(BY)
        return None if by is None else str(by)

    @property
    def is_asked_for(self) -> bool:
        """Whether a person or a program asked for it, by a control."""
        return REQUEST in self.data

    @classmethod
    def created(cls, run: Run) -> list[AuditInfo]:
        """The first fact, which is read from the run itself; none if that cannot be read."""
        if (at := Flaws().moment("created_at", run.created_at)) is None:
            return []
        data: dict[str, str | int] = {"type": run.type}
        if run.key is not None:
            data["key"] = run.key
        return [cls(event="created", at=at, data=data)]

    @classmethod
    def of(cls, fact: AuditFact) -> AuditInfo:
        return cls(event=fact.event, at=Flaws().nearest("at", fact.at), data=fact.data)


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a run has not received yet. `sent_at` is when it reached the run.

    `unreadable`: why its payload could not be decoded, and is `None`.
    """

    id: str
    name: str
    payload: Any
    sent_at: datetime
    unreadable: str | None = None

    @classmethod
    def of(cls, arrival: Arrival) -> MessageInfo:
        flaws = Flaws()
        return cls(
            id=arrival.ref or "",
            name=arrival.name,
            payload=flaws.json("payload", arrival.payload),
            sent_at=flaws.nearest("sent_at", arrival.at),
            unreadable=flaws.told,
        )


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How events of a topic, or of a family of topics, are delivered and kept."""

    name: str
    mode: TopicMode
    retention: timedelta
    max_pending: int

    @classmethod
    def of(cls, topic: Topic) -> TopicInfo:
        return cls(
            name=topic.name,
            mode=topic.mode,
            retention=timedelta(microseconds=topic.retention),
            max_pending=topic.max_pending,
        )


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known and was said of a type of runs. None of a limit is no limit; `rate` is how many in how long.

    `last_worker` is the name of the worker that was last ready to work on it, `last_seen_at` when it was last heard of;
    `counts` are its runs by state, and `parked` are those that its limits keep waiting.
    """

    name: str
    runtime: str
    description: str
    enabled: bool
    concurrency: int | None
    per_key: dict[str, int]
    rate: tuple[int, timedelta] | None
    retention: timedelta | None
    last_worker: str | None
    last_seen_at: datetime | None
    counts: dict[RunState, int]
    parked: int

    @classmethod
    def of(
        cls, rule: TypeRule, workers: Sequence[WorkerRecord], counts: Mapping[RunState, int], parked: int
    ) -> TypeInfo:
        seen = [(worker.heartbeat_at, worker.name) for worker in workers]
        last = max([*seen, (rule.seen_at or 0, rule.seen_by)])
        return cls(
            name=rule.name,
            runtime=rule.runtime,
            description=rule.description,
            enabled=rule.is_enabled,
            concurrency=rule.concurrency,
            per_key=dict(rule.per_key),
            rate=None if rule.rate is None else (rule.rate.count, timedelta(microseconds=rule.rate.period)),
            retention=None if rule.retention is None else timedelta(microseconds=rule.retention),
            last_worker=last[1] or None,
            last_seen_at=Flaws().nearest("last_seen_at", last[0]) if last[0] else None,
            counts=dict(counts),
            parked=parked,
        )


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stood when it was read. `next_at` is none while it is paused.

    `skipped` counts the slots left out because an earlier run had not ended. `is_declared`: it stands in code.
    `unreadable`: why its payload could not be decoded, and is `None`.
    """

    name: str
    type: str
    payload: Any
    cron: str | None
    every: timedelta | None
    zone: str
    catch_up: CatchUp
    overlap: Overlap
    jitter: timedelta
    priority: int
    tags: dict[str, str]
    is_declared: bool
    is_paused: bool
    created_at: datetime
    updated_at: datetime
    next_at: datetime | None
    last_slot: datetime | None
    last_run_id: str | None
    skipped: int
    last_skipped_slot: datetime | None
    unreadable: str | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> ScheduleInfo:
        flaws = Flaws()
        return cls(
            name=schedule.name,
            type=schedule.type,
            payload=flaws.json("payload", schedule.payload),
            cron=schedule.cron,
            every=None if schedule.every is None else timedelta(microseconds=schedule.every),
            zone=schedule.zone,
            catch_up=schedule.catch_up,
            overlap=schedule.overlap,
            jitter=timedelta(microseconds=schedule.jitter),
            priority=schedule.priority,
            tags=schedule.tags,
            is_declared=schedule.is_declared,
            is_paused=schedule.is_paused,
            created_at=flaws.nearest("created_at", schedule.created_at),
            updated_at=flaws.nearest("updated_at", schedule.updated_at),
            next_at=flaws.later("next_at", schedule.next_at),
            last_slot=flaws.later("last_slot", schedule.last_slot),
            last_run_id=schedule.last_run_id,
            skipped=schedule.skipped,
            last_skipped_slot=flaws.later("last_skipped_slot", schedule.last_skipped_slot),
            unreadable=flaws.told,
        )

    @property
    def upcoming(self) -> list[datetime]:
        """The next five times at which it fires, in its own zone; none while it is paused."""
        return self.next_times(UPCOMING)

    def next_times(self, count: int) -> list[datetime]:
        """The next times at which it fires, in its own zone; none while it is paused."""
        if self.next_at is None:
            return []
        first = instant(self.next_at)
        every = None if self.every is None else micros(self.every)
        rule = Schedule(
            name=self.name, type=self.type, payload="", cron=self.cron, every=every, zone=self.zone, anchor=first
        )
        place = zone_of(self.zone)
        return [moment(slot).astimezone(place) for slot in (first, *next_slots(rule, first, count - 1))]


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that the store has heard of. `held` is how many runs it holds, `concurrency` how many it takes.

    A worker that is not alive keeps what it held until another worker takes it over.
    """

    id: str
    name: str
    host: str
    pid: int
    types: tuple[str, ...]
    concurrency: int
    held: int
    started_at: datetime
    heartbeat_at: datetime
    is_alive: bool

    @classmethod
    def of(cls, worker: WorkerRecord, *, held: int, is_alive: bool) -> WorkerInfo:
        flaws = Flaws()
        return cls(
            id=worker.id,
            name=worker.name,
            host=worker.host,
            pid=worker.pid,
            types=worker.types,
            concurrency=worker.concurrency,
            held=held,
            started_at=flaws.nearest("started_at", worker.started_at),
            heartbeat_at=flaws.nearest("heartbeat_at", worker.heartbeat_at),
            is_alive=is_alive,
        )


class DeadLetterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be delivered: an event of `topic`, or a message to `run_id` of this `name`.

    `at` is when it was given up, `reason` is `expired`, `overflow` or `undelivered`. `unreadable`: why its payload
    could not be decoded, and is `None`.
    """

    number: int
    id: str
    topic: str | None
    run_id: str | None
    name: str | None
    payload: Any
    at: datetime
    reason: DeadReason
    unreadable: str | None = None

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadLetterInfo:
        flaws = Flaws()
        return cls(
            number=letter.number,
            id=letter.id,
            topic=letter.topic,
            run_id=letter.run_id,
            name=letter.name,
            payload=flaws.json("payload", letter.payload),
            at=flaws.nearest("at", letter.at),
            reason=letter.reason,
            unreadable=flaws.told,
        )


def _wait_info(wait: Wait, flaws: Flaws) -> WaitInfo:
    return WaitInfo(
        location=wait.location,
        kind=wait.kind,
        names=wait.names,
        since=flaws.nearest("waits", wait.since),
        deadline=flaws.later("waits", wait.deadline),
        count=wait.count,
    )


def _result(entry: Entry) -> Any:
    if entry.result is None:
        return None
    # What is not settled has received nothing: the events a run has had are kept as a table in an entry of their kind.
    if entry.kind not in (EntryKind.MESSAGE, EntryKind.EVENT) or not entry.is_settled:
        return decode_any(entry.result)
    # A reception records more than the payload, which is what its user sees; one of many has no id of its own.
    payloads = [decode_any(one.payload) for one in received_in(entry)]
    return payloads if entry.ref is None else payloads[0]
