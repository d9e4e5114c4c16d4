"""Records: what users read of stored rows, and the fields of a row that cannot be decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

import msgspec

from holdfast.core.audit import BY, REQUEST
from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, Micros, instant, micros, moment
from holdfast.core.codec import decode_any
from holdfast.core.entries import ADOPTED_LOCATION, FLOW_LOCATION, received_in
from holdfast.core.errors import ErrorRecord
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
    WaitKind,
    WorkerRecord,
)
from holdfast.core.questions import Details
from holdfast.core.schedules import UPCOMING, next_slots, zone_of
from holdfast.core.states import RunState
from holdfast.core.wire import joined, reason_of

R = TypeVar("R", bound=msgspec.Struct)


def record(kind: type[R], row: msgspec.Struct, *, unreadable: str | None = None, **known: Any) -> R:
    """Return a row as users read it: each field of the record in the form that its type says.

    Instants become datetimes, lengths become timedeltas and JSON texts become values. `known` are fields that the row
    does not have, or functions that make them. A field that cannot be decoded is None, or the nearest valid date, and
    `unreadable` of the record says why.
    """
    flaws = [unreadable]
    for name, form in _forms(kind).items():
        value = known[name] if name in known else getattr(row, name)
        if value is None or form is None:
            known[name] = value
            continue
        try:
            known[name] = value() if callable(value) else form(value)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            known[name] = nearest(value) if form is moment else None
            flaws.append(f"{name}: {reason_of(error.__cause__ or error)}")
    if "unreadable" in kind.__struct_fields__:
        known["unreadable"] = joined(flaws)
    return kind(**known)


def nearest(at: Micros) -> datetime:
    """Return an instant as a datetime, or the nearest valid one."""
    return moment(min(max(at, FIRST_INSTANT), LAST_INSTANT))


def _later(at: Micros) -> datetime | None:
    """Return None for an instant after the last date, such as the end of an endless sleep."""
    return None if at > LAST_INSTANT else moment(at)


def _length(length: Micros) -> timedelta:
    return timedelta(microseconds=length)


_FORMS: dict[Any, Callable[[Any], Any]] = {
    Any: decode_any,
    datetime: moment,
    datetime | None: _later,
    timedelta: _length,
    timedelta | None: _length,
}


@cache
def _forms(kind: type[msgspec.Struct]) -> dict[str, Callable[[Any], Any] | None]:
    """Return the form of each field. None if the row has it as users see it."""
    fields = msgspec.structs.fields(kind)
    return {field.name: _FORMS.get(field.type) for field in fields if field.name != "unreadable"}


_FLOW_LOCATION = re.compile(r"@(\d+)/(.+)#\d+(/\d+)?$", re.DOTALL)


class WaitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One wait of a run. `location` is its place in the code, `since` its begin and `deadline` its end.

    `kind` is `time`, `retry`, `message`, `event`, `child`, `children` or `slot` (of a limit). `names` are the names of
    the messages (none: any), the topic, the id of the child, or the limits. `count` is the number of children that have
    to end.
    """

    location: str
    kind: WaitKind
    names: tuple[str, ...]
    since: datetime
    deadline: datetime | None
    count: int = 0

    @property
    def line(self) -> int | None:
        """The line of the program that waits, in a flow."""
        return _line_of(self.location)

    @property
    def name(self) -> str:
        """Its location; in a flow, without the line and the number that make it unique."""
        return _name_of(self.location)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run at the moment when it was read.

    `id`, `type`, `payload`, `key`, `priority` and `tags` are those of its start. `created_at`, `updated_at` and
    `finished_at` are the times of its start, last change and end.
    """

    id: str
    type: str
    state: RunState
    """The state of the run: `info.state == "failed"`, `info.state.is_end`."""
    payload: Any
    result: Any
    """The return value of the workflow. None until then."""
    error: ErrorRecord | None
    """The reason why the run failed, was cancelled, rolls back or is blocked."""
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
    """The time from which a worker may take it: its start or next attempt, or the end of a sleep, timeout or lease."""
    deleted_at: datetime | None
    """The time of its deletion."""
    waits: tuple[WaitInfo, ...]
    """The waits of the run."""
    unreadable: str | None = None
    """The reason why its row in the store cannot be decoded, if so. Those fields have placeholders."""

    @classmethod
    def of(cls, details: Details) -> RunInfo:
        waits = tuple(record(WaitInfo, wait) for wait in details.waits)
        return record(cls, details.run, payload=details.run.input, waits=waits, unreadable=details.unreadable)


class EntryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One operation in the history of a run. `started_at` and `finished_at` are its times.

    `state` is `started`, `retrying`, `done`, `failed` or `timed_out`. `kind` is `step`, `tx`, `timer`, `message`,
    `event`, `child`, `send`, `emit`, `cancel`, `reply`, `loop`, `version`, `removed`, `rollback`, `undo`, `rounds` or
    `snapshot`.
    """

    location: str
    """Its path in the run, such as `charge`, `charge#2` or `ship/~2/label`. `rewind` and `fork` take it.

    In a flow it has the line of the program: `@7/receive:decision#4`. A snapshot is at `@turn/n`.
    """
    kind: EntryKind
    state: EntryState
    attempts: int
    """The number of attempts."""
    result: Any
    """Its result; of a wait, the payload."""
    error: ErrorRecord | None
    """The reason why it failed."""
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    """The time of the next attempt."""
    ref: str | None
    """The id of the child, message or run that it refers to."""
    unreadable: str | None = None
    """The reason why its result cannot be decoded, if so. The result is None then."""

    @property
    def line(self) -> int | None:
        """The line of the program that asked for it, in a flow."""
        return _line_of(self.location)

    @property
    def name(self) -> str:
        """Its location; in a flow, without the line and the number that make it unique."""
        return _name_of(self.location)

    @classmethod
    def of(cls, entry: Entry) -> EntryInfo:
        return record(cls, entry, result=lambda: _result(entry))


class AuditInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One event in the life of a run: `event` is what happened, `at` is when, and `data` are the details.

    Events are `created`, `claimed`, `suspended`, `paused`, `recovered` and the like.
    """

    event: str
    at: datetime
    by: str | None = None
    """The name of who asked for it, if the audit knows."""
    data: dict[str, str | int]

    @property
    def is_asked_for(self) -> bool:
        """True if a person or program asked for it, by a control such as `cancel`."""
        return REQUEST in self.data

    @classmethod
    def created(cls, run: Run) -> AuditInfo:
        """Return the first event, made from the run itself."""
        data: dict[str, str | int] = {"type": run.type}
        if run.key is not None:
            data["key"] = run.key
        if by := run.options.by:
            data[BY] = by
        return cls(event="created", at=nearest(run.created_at), by=by or None, data=data)

    @classmethod
    def of(cls, fact: AuditFact) -> AuditInfo:
        by = fact.data.get(BY)
        return record(cls, fact, by=None if by is None else str(by))


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a run has not received yet: its `id`, its `name` and its `payload`.

    `sent_at` is when it reached the run. `unreadable` says why the payload could not be decoded; then it is `None`.
    """

    id: str
    name: str
    payload: Any
    sent_at: datetime
    unreadable: str | None = None

    @classmethod
    def of(cls, arrival: Arrival) -> MessageInfo:
        return record(cls, arrival, id=arrival.ref or "", sent_at=arrival.at)


def _line_of(location: str) -> int | None:
    found = _FLOW_LOCATION.match(location)
    return None if found is None else int(found[1])


def _name_of(location: str) -> str:
    found = _FLOW_LOCATION.match(location)
    return location if found is None else f"{found[2]}{found[3] or ''}"


def entry_infos(entries: Iterable[Entry]) -> list[EntryInfo]:
    """Return a history as users see it. The newest snapshot of a flow is left out: its last kept copy is the same."""
    return [EntryInfo.of(entry) for entry in entries if entry.location not in (FLOW_LOCATION, ADOPTED_LOCATION)]


def _result(entry: Entry) -> Any:
    if entry.result is None or entry.kind is EntryKind.SNAPSHOT:  # the state of a flow is not for users
        return None
    # An entry of these kinds that is not settled has received nothing. It is the entry of the event cursors.
    if entry.kind not in (EntryKind.MESSAGE, EntryKind.EVENT) or not entry.is_settled:
        return decode_any(entry.result)
    # A reception records more than the payload, but users see only the payload. A batch has no `ref`.
    payloads = [decode_any(one.payload) for one in received_in(entry)]
    return payloads if entry.ref is None else payloads[0]


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for events of a topic, or of a family of topics.

    `name` is the topic, or a prefix with `*`. `mode` is `fanout` or `queue`. Events are kept for `retention`, and at
    most `max_pending` of them.
    """

    name: str
    mode: TopicMode
    retention: timedelta = msgspec.field(name="retention_seconds")
    max_pending: int

    @classmethod
    def of(cls, topic: Topic) -> TopicInfo:
        return record(cls, topic)


class RateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A rate: at most `count` runs begin in a period."""

    count: int
    period: timedelta = msgspec.field(name="seconds")


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a type of runs, its last worker, and counts of its runs. None means no limit.

    `enabled`, `concurrency`, `per_key`, `rate` (a number of runs and a period), `retention`, `description` and
    `runtime` are the rules that `hf.types.set` sets. `name` is the type.
    """

    name: str
    runtime: str
    description: str
    enabled: bool
    concurrency: int | None
    per_key: dict[str, int]
    _rate: RateInfo | None = msgspec.field(name="rate")
    retention: timedelta | None = msgspec.field(name="retention_seconds")
    last_worker: str | None
    """The name of the worker that was last ready to execute it."""
    last_seen_at: datetime | None
    """The time of the last heartbeat of that worker."""
    counts: dict[RunState, int]
    """Number of its runs in each state."""
    parked: int
    """Number of its runs that wait because of its limits."""
    plan: tuple[str, ...] = ()
    """The names of the steps of a pipeline, in order. Empty for other types."""

    @property
    def rate(self) -> tuple[int, timedelta] | None:
        """At most this number of runs begin in this period."""
        return None if self._rate is None else (self._rate.count, self._rate.period)

    @classmethod
    def of(
        cls, rule: TypeRule, workers: Sequence[WorkerRecord], counts: Mapping[RunState, int], parked: int
    ) -> TypeInfo:
        seen = [(worker.heartbeat_at, worker.name) for worker in workers]
        last = max([*seen, (rule.seen_at or 0, rule.seen_by)])
        return record(
            cls,
            rule,
            enabled=rule.is_enabled,
            per_key=dict(rule.per_key),
            _rate=None if rule.rate is None else record(RateInfo, rule.rate),
            last_worker=last[1] or None,
            last_seen_at=last[0] or None,
            counts=dict(counts),
            parked=parked,
        )


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule at the moment when it was read.

    `name`, `type`, `payload`, `cron`, `every`, `zone`, `catch_up`, `overlap`, `jitter`, `priority` and `tags` are as
    they were put. `created_at` and `updated_at` are the times of its creation and of its last change.
    """

    name: str
    type: str
    payload: Any
    cron: str | None
    every: timedelta | None = msgspec.field(name="every_seconds")
    zone: str
    catch_up: CatchUp
    overlap: Overlap
    jitter: timedelta = msgspec.field(name="jitter_seconds")
    priority: int
    tags: dict[str, str]
    is_declared: bool
    """True if code declares it with `@hf.schedule`."""
    is_paused: bool
    """True if it is paused."""
    created_at: datetime
    updated_at: datetime
    next_at: datetime | None
    """The next time at which it fires. None while it is paused."""
    last_slot: datetime | None
    """The last time for which it started a run."""
    last_run_id: str | None
    """The last run that it started."""
    skipped: int
    """Number of times at which it started no run, because an earlier one had not ended."""
    last_skipped_slot: datetime | None
    """The last such time."""
    unreadable: str | None = None
    """The reason why its payload cannot be decoded, if so. The payload is None then."""

    @classmethod
    def of(cls, schedule: Schedule) -> ScheduleInfo:
        return record(cls, schedule)

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
    the times of its start and of its last heartbeat.
    """

    id: str
    name: str
    host: str
    pid: int
    types: tuple[str, ...]
    concurrency: int
    """Maximum number of runs that it executes at once."""
    started_at: datetime
    heartbeat_at: datetime
    is_alive: bool
    """True if its last heartbeat is recent."""
    held: int
    """Number of runs that it holds now."""

    @classmethod
    def of(cls, worker: WorkerRecord, *, held: int, is_alive: bool) -> WorkerInfo:
        return record(cls, worker, held=held, is_alive=is_alive)


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
    """The time at which it became a dead letter."""
    reason: DeadReason
    """The reason: it was too old, there were too many, or its run ended without receiving it."""
    unreadable: str | None = None
    """The reason why its payload cannot be decoded, if so. The payload is None then."""

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadLetterInfo:
        return record(cls, letter)
