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
    """Something that a run waits for. `location` is where, `since` and `deadline` are from when and until when.

    `kind` is `time`, `retry`, `message`, `event`, `child`, `children` or `slot` (of a limit). `names` are the names of
    the messages (none: any), the topic, the id of the child, or the limits. `count` is how many children have to end.
    """

    location: str
    kind: WaitKind
    names: tuple[str, ...]
    since: datetime
    deadline: datetime | None
    count: int = 0


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run at the moment when it was read.

    `id`, `type`, `payload`, `key`, `priority` and `tags` are those of its start. `created_at`, `updated_at` and
    `finished_at` are the times of its start, last change and end.
    """

    id: str
    type: str
    state: RunState
    """Where the run stands: `info.state == "failed"`, `info.state.is_end`."""
    payload: Any
    result: Any
    """What the workflow returned. None before."""
    error: ErrorRecord | None
    """Why the run failed, was cancelled, rolls back or is blocked."""
    key: str | None
    priority: int
    tags: dict[str, str]
    attempt: int
    """1, and one more after each crash, block or reopening. `EntryInfo.attempts` counts attempts at a step."""
    generation: int
    """1, and one more after each `ctx.continue_as_new`."""
    parent_id: str | None
    """The run that started it as a child."""
    worker: str | None
    """The id of the worker that holds the run, if one does."""
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    ready_at: datetime | None
    """When a worker may take it: its start, its next attempt, the end of its sleep or timeout, or of its lease."""
    deleted_at: datetime | None
    """When it was deleted."""
    waits: tuple[WaitInfo, ...]
    """What it waits for."""
    unreadable: str | None = None
    """Why its row in the store cannot be decoded, if so. Fields that could not be decoded are None then."""

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
    """One operation in the history of a run. `started_at` and `finished_at` are its times.

    `state` is `started`, `retrying`, `done`, `failed` or `timed_out`. `kind` is `step`, `tx`, `timer`, `message`,
    `event`, `child`, `send`, `emit`, `cancel`, `reply`, `loop`, `version`, `removed`, `rollback`, `undo` or `rounds`.
    """

    location: str
    """Its path in the run, such as `charge`, `charge#2` or `ship/~2/label`. `rewind` and `fork` take it."""
    kind: EntryKind
    state: EntryState
    attempts: int
    """How many attempts were made."""
    result: Any
    """What it returned; of a wait, the payload."""
    error: ErrorRecord | None
    """Why it failed."""
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    """When the next attempt is due."""
    ref: str | None
    """What it refers to: the id of a child, a message or a run."""
    unreadable: str | None = None
    """Why its result cannot be decoded, if so. The result is None then."""

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
    """One event in the life of a run: `event` is what happened, `at` is when, and `data` are the details.

    Events are `created`, `claimed`, `suspended`, `paused`, `recovered` and the like.
    """

    event: str
    at: datetime
    data: dict[str, str | int]

    @property
    def by(self) -> str | None:
        """Who asked for it, if the audit knows."""
        by = self.data.get(BY)
        return None if by is None else str(by)

    @property
    def is_asked_for(self) -> bool:
        """Whether a person or program asked for it, by a control such as `cancel`."""
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


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How events of a topic, or of a family of topics, are delivered and kept.

    `name` is the topic, or a prefix with `*`. `mode` is `fanout` or `queue`. `retention` and `max_pending` are how long
    and how many events are kept.
    """

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
    """The rules of a type of runs, and what is known about it. A limit that is None is no limit.

    `enabled`, `concurrency`, `per_key`, `rate` (how many, in how long), `retention`, `description` and `runtime` are
    the rules that `hf.types.set` sets. `name` is the type.
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
    """The name of the worker that was last ready to execute it."""
    last_seen_at: datetime | None
    """When that worker was last heard of."""
    counts: dict[RunState, int]
    """How many of its runs are in each state."""
    parked: int
    """How many of its runs wait because of its limits."""

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
    """A schedule at the moment when it was read.

    `name`, `type`, `payload`, `cron`, `every`, `zone`, `catch_up`, `overlap`, `jitter`, `priority` and `tags` are as
    they were put. `created_at` and `updated_at` are when it was put first, and changed last.
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
    """Whether code declares it with `@hf.schedule`."""
    is_paused: bool
    """Whether it is paused."""
    created_at: datetime
    updated_at: datetime
    next_at: datetime | None
    """When it fires next. None while it is paused."""
    last_slot: datetime | None
    """The last time for which it started a run."""
    last_run_id: str | None
    """The last run that it started."""
    skipped: int
    """How many times it started no run because an earlier one had not ended."""
    last_skipped_slot: datetime | None
    """The last such time."""
    unreadable: str | None = None
    """Why its payload cannot be decoded, if so. The payload is None then."""

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
        """The next five times at which it fires, in its own zone. Empty while it is paused."""
        return self.next_times(UPCOMING)

    def next_times(self, count: int) -> list[datetime]:
        """Return the next `count` times at which it fires, in its own zone. Empty while it is paused."""
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
    """A worker that the store knows: `id`, `name`, `host`, `pid`, and the `types` that it executes.

    A worker that is not alive keeps its runs until another worker takes them over. `started_at` and `heartbeat_at` are
    when it started and was last heard of.
    """

    id: str
    name: str
    host: str
    pid: int
    types: tuple[str, ...]
    concurrency: int
    """How many runs it executes at once."""
    held: int
    """How many runs it holds now."""
    started_at: datetime
    heartbeat_at: datetime
    is_alive: bool
    """Whether its last heartbeat is recent."""

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
    """An event or message that could not be delivered. An event has a `topic`, a message a `run_id` and a `name`.

    `id` and `payload` are those of the event or message.
    """

    number: int
    """Its number, for `hf.dead_letters.replay` and `purge`."""
    id: str
    topic: str | None
    run_id: str | None
    name: str | None
    payload: Any
    at: datetime
    """When it was given up."""
    reason: DeadReason
    """Why: it was too old, there were too many, or its run ended without receiving it."""
    unreadable: str | None = None
    """Why its payload cannot be decoded, if so. The payload is None then."""

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
