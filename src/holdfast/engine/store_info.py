"""Public records of topics, types, schedules, workers and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.clock import instant, micros, moment
from holdfast.core.cron import zone_of
from holdfast.core.model import (
    CatchUp,
    DeadLetter,
    DeadReason,
    Overlap,
    Schedule,
    Topic,
    TopicMode,
    TypeRule,
    WorkerRecord,
)
from holdfast.core.schedules import UPCOMING, next_slots
from holdfast.core.states import RunState
from holdfast.engine.flaws import record


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
