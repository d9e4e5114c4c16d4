"""What exists: the values that stores keep and workers exchange with them.

All are frozen; a change makes a new value. Times are microseconds (see `clock`), values of users are
JSON text, which only `codec` reads and writes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.states import RunState

DEFAULT_PRIORITY = 100
EVENT_RETENTION: Micros = 7 * 86_400 * 1_000_000
EVENT_MAX_PENDING = 10_000
RECEIPT_RETENTION: Micros = 86_400 * 1_000_000

OnClose = Literal["cancel", "abandon"]
Reuse = Literal["never", "after_failure", "after_end"]
Undelivered = Literal["discard", "dead_letter"]
TopicMode = Literal["fanout", "queue"]
DeadReason = Literal["expired", "overflow", "undelivered"]
CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip"]


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base of everything stored or sent. Values hold values, never a way back, so the collector may skip them."""


class RunOptions(Value, frozen=True, kw_only=True):
    """What was asked for when a run was started and never changes: rarely anything.

    `max_run` counts from the start time and `max_suspend` from each suspension; either ends the run as cancelled.
    `undelivered` says what becomes of messages nobody received. `seed` is the run whose chance a fork repeats.
    `trace` is the `traceparent` of whoever started it. `map_limit` is how many children of one `map` run at once.
    """

    max_run: Micros | None = None
    max_suspend: Micros | None = None
    undelivered: Undelivered = "discard"
    seed: str | None = None
    trace: str | None = None
    map_limit: int | None = None


DEFAULT_OPTIONS = RunOptions()


class Intent(Value, frozen=True, kw_only=True):
    """The wish that a run exist. A start, a child and a schedule all make one.

    A parked one waits for a slot of its siblings: whichever of them ends makes the next one ready. Of a child with
    a `limit` that is decided when it is made: it is parked if so many of its siblings have a slot. `retention` is how
    long the run is kept after its end, if not as long as others of its type.
    """

    id: str
    type: str
    payload: str
    key: str | None = None
    reuse: Reuse = "never"
    priority: int = DEFAULT_PRIORITY
    start_at: Micros | None = None
    delay: Micros = 0
    tags: dict[str, str] = {}
    parent_id: str | None = None
    parent_location: str | None = None
    on_close: OnClose = "abandon"
    is_parked: bool = False
    limit: int | None = None
    retention: Micros | None = None
    options: RunOptions = DEFAULT_OPTIONS

    @property
    def group(self) -> str | None:
        """What the run will have in common with siblings that share a limit."""
        return group_of(self.parent_id, self.parent_location)


class Fence(Value, frozen=True, array_like=True):
    """What of a run decides whether its holder may write, and what he is told of it. Read for every step there is."""

    id: str
    token: int
    worker: str | None
    arrivals: int
    is_pausing: bool

    @property
    def is_held(self) -> bool:
        return self.worker is not None


class Run(Value, frozen=True, kw_only=True):
    """One durable execution, as it stands.

    `worker` set means *held*: only the holder of `token` may write. `ready_at` is the one queue column:
    the instant from which the run may be claimed, which for a held run is the end of its lease.
    `rollback` set means that its code is over: it undoes what it did, and ends so. `is_pausing` asks the holder
    to let go at the next standstill. `continued` is the payload of a generation after the first. `slots` are those it
    has of the limits of its type, which it gives back when it neither is held nor could be claimed any more.
    `deleted_at` set means that people no longer see it; `purge_at` is when it is removed, if not when its type says:
    `retention` after its end, if that was asked for.
    """

    id: str
    type: str
    state: RunState
    payload: str
    created_at: Micros
    start_at: Micros
    updated_at: Micros
    priority: int = DEFAULT_PRIORITY
    ready_at: Micros | None = None
    key: str | None = None
    tags: dict[str, str] = {}
    worker: str | None = None
    token: int = 0
    claim_id: str | None = None
    first_claimed_at: Micros | None = None
    finished_at: Micros | None = None
    python: str | None = None
    attempt: int = 1
    generation: int = 1
    crashes: int = 0
    arrivals: int = 0
    parent_id: str | None = None
    parent_location: str | None = None
    on_close: OnClose = "abandon"
    result: str | None = None
    error: ErrorRecord | None = None
    rollback: RunState | None = None
    is_pausing: bool = False
    suspended_at: Micros | None = None
    continued: str | None = None
    slots: tuple[str, ...] = ()
    retention: Micros | None = None
    deleted_at: Micros | None = None
    purge_at: Micros | None = None
    options: RunOptions = DEFAULT_OPTIONS

    @property
    def is_held(self) -> bool:
        return self.worker is not None

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.token, self.worker, self.arrivals, self.is_pausing)

    @property
    def input(self) -> str:
        """The payload its code is called with: what it was started with, or what its last generation handed on."""
        return self.payload if self.continued is None else self.continued

    @property
    def end_by(self) -> Micros | None:
        """When it is cancelled at the latest."""
        return None if self.options.max_run is None else self.start_at + self.options.max_run

    @property
    def group(self) -> str | None:
        """What siblings that share a limit have in common: the operation of their parent that made them."""
        return group_of(self.parent_id, self.parent_location)


def group_of(parent_id: str | None, location: str | None) -> str | None:
    """What the children have in common that one operation of their parent made, at locations below its own."""
    scope = (location or "").rpartition("/")[0]
    return f"{parent_id}/{scope}" if scope else None


class EntryKind(StrEnum):
    """What kind of operation an entry records."""

    STEP = "step"
    TX = "tx"
    TIMER = "timer"
    MESSAGE = "message"
    EVENT = "event"
    CHILD = "child"
    SEND = "send"
    EMIT = "emit"
    CANCEL = "cancel"
    REPLY = "reply"
    LOOP = "loop"
    VERSION = "version"
    REMOVED = "removed"
    ROLLBACK = "rollback"
    UNDO = "undo"
    ROUNDS = "rounds"


class EntryState(StrEnum):
    """How far an operation is. Only the settled ones have a position and never change again."""

    STARTED = "started"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


class Entry(Value, frozen=True, kw_only=True):
    """The record at a location. `position` is its place in commit order; 0 while it is not settled.

    `ref` names the other side: the child's run id, the message's id, the event's number. `since` is the position
    of the last fact before it was asked for. `has_undo`: there is something to undo, should the run roll back.
    `retry_at` is when it is tried again; of a settled one, when the run went back to it: time goes on from then.
    """

    location: str
    kind: EntryKind
    state: EntryState
    position: int = 0
    attempts: int = 0
    result: str | None = None
    error: ErrorRecord | None = None
    started_at: Micros = 0
    finished_at: Micros | None = None
    retry_at: Micros | None = None
    ref: str | None = None
    since: int = 0
    has_undo: bool = False

    @property
    def is_settled(self) -> bool:
        return self.position > 0


class WaitKind(StrEnum):
    """What a suspended run waits for."""

    TIME = "time"
    RETRY = "retry"
    MESSAGE = "message"
    EVENT = "event"
    CHILD = "child"
    CHILDREN = "children"
    SLOT = "slot"


class Wait(Value, frozen=True, kw_only=True):
    """A named reason to be suspended. `names`: message names (none: any), the topic, the child's id, the group.

    `after` is, for an event, the number of the last one of this topic the run has had; for a slot, the priority: of
    those who wait for the same, the lowest goes first, then who has waited longest. `count` is, for a group of
    children, how many have to end before the run is woken.
    """

    location: str
    kind: WaitKind
    since: Micros
    names: tuple[str, ...] = ()
    deadline: Micros | None = None
    after: int = 0
    count: int = 0


class Arrival(Value, frozen=True, kw_only=True):
    """What reached a run from outside and waits in its inbox, under the run's next arrival number.

    `name`: the message's name, the topic, the child's run id. `ref`: the message's id, the event's number.
    `state` and `error` tell how a child ended; its result is the payload, `group` what it shares with siblings.
    `is_exclusive`: an event of a queue, which no other run gets.
    """

    number: int
    kind: WaitKind
    name: str
    at: Micros
    payload: str | None = None
    ref: str | None = None
    state: RunState | None = None
    error: ErrorRecord | None = None
    group: str | None = None
    is_exclusive: bool = False


class MessageToRun(Value, frozen=True, kw_only=True):
    """Addressed to one run, by its id or by its key."""

    id: str
    name: str
    payload: str
    run_id: str | None = None
    key: str | None = None


class Event(Value, frozen=True, kw_only=True):
    """Published on a topic. The id makes a repeated emit harmless."""

    id: str
    topic: str
    payload: str


class Reply(Value, frozen=True, kw_only=True):
    """The answer of a run to a message it received."""

    message_id: str
    payload: str


class Topic(Value, frozen=True, kw_only=True):
    """How events of a topic are delivered and kept. A name that ends in `*` covers a family of topics."""

    name: str
    mode: TopicMode = "fanout"
    retention: Micros = EVENT_RETENTION
    max_pending: int = EVENT_MAX_PENDING


class Rate(Value, frozen=True, kw_only=True):
    """So many in any stretch of time of this length."""

    count: int
    period: Micros


class TypeRule(Value, frozen=True, kw_only=True):
    """What is known and was said of a type of runs.

    At most `concurrency` of its runs are worked on at once, and of those with the same value of a tag as many as
    `per_key` says for that tag; at most so many begin as `rate` allows. `seen_by` is the worker that last offered to
    do them, `runtime` what that is made of.
    """

    name: str
    runtime: str = ""
    description: str = ""
    is_enabled: bool = True
    concurrency: int | None = None
    per_key: dict[str, int] = {}
    rate: Rate | None = None
    retention: Micros | None = None
    seen_by: str = ""
    seen_at: Micros | None = None

    @property
    def is_limited(self) -> bool:
        return self.concurrency is not None or self.rate is not None or bool(self.per_key)

    @property
    def limits(self) -> tuple[int | None, dict[str, int], Rate | None]:
        """What has to be the same for nobody to be concerned by a change."""
        return self.concurrency, self.per_key, self.rate

    def offered(self, offer: TypeOffer, worker: str, now: Micros) -> TypeRule:
        """The rule after a worker has said that it is ready. What a person has said stays."""
        return msgspec.structs.replace(
            self,
            runtime=offer.runtime,
            description=self.description or offer.description,
            seen_by=worker,
            seen_at=now,
        )


class TypeChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be otherwise about a type; whatever is not named stays as it is."""

    name: str
    runtime: str | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType = msgspec.UNSET
    is_enabled: bool | msgspec.UnsetType = msgspec.UNSET
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    per_key: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    rate: Rate | msgspec.UnsetType | None = msgspec.UNSET
    retention: Micros | msgspec.UnsetType | None = msgspec.UNSET

    def applied_to(self, rule: TypeRule) -> TypeRule:
        """The rule with what is to be otherwise."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(rule, **{n: value for n, value in named.items() if value is not msgspec.UNSET})


class TypeOffer(Value, frozen=True, kw_only=True):
    """What a worker says of a type it is ready to work on."""

    name: str
    runtime: str
    description: str = ""


class DeadLetter(Value, frozen=True, kw_only=True):
    """What could not be delivered: a queue event that expired or overflowed, or a message to a run that ended.

    `topic` is set for an event, `run_id` and `name` for a message; `id` is the event's or message's own. `at` is when
    it was given up, `reason` is `expired`, `overflow` or `undelivered`.
    """

    number: int
    id: str
    payload: str
    at: Micros
    reason: DeadReason
    topic: str | None = None
    run_id: str | None = None
    name: str | None = None


class Schedule(Value, frozen=True, kw_only=True):
    """A rule that makes runs over time: at the fire times of `cron` in `zone`, or `every` so often since `anchor`.

    Of what users say `jitter` is the most by which a run starts later than its slot, and `is_declared` that it stands
    in their code. All else is how it stands: `next_at` is the next slot that nobody has looked after, none while it is
    paused; `open_run_ids` are those of its runs that may not have ended, kept if that matters to it; `skipped` counts
    the slots it left out because of them.
    """

    name: str
    type: str
    payload: str
    cron: str | None = None
    every: Micros | None = None
    zone: str = "UTC"
    catch_up: CatchUp = "one"
    overlap: Overlap = "allow"
    jitter: Micros = 0
    priority: int = DEFAULT_PRIORITY
    tags: dict[str, str] = {}
    options: RunOptions = DEFAULT_OPTIONS
    is_declared: bool = False

    is_paused: bool = False
    created_at: Micros = 0
    updated_at: Micros = 0
    anchor: Micros = 0
    next_at: Micros | None = None
    last_slot: Micros | None = None
    last_run_id: str | None = None
    open_run_ids: tuple[str, ...] = ()
    skipped: int = 0
    last_skipped_slot: Micros | None = None


class Firing(Value, frozen=True, kw_only=True):
    """What a scheduler found to be due: the slots to make runs for, and the next one. Void if it is not as it was."""

    schedule: Schedule
    slots: tuple[Micros, ...]
    next_at: Micros | None


class Lease(Value, frozen=True, kw_only=True):
    """The sole right to write a run for a while, with all its holder needs to continue it."""

    run: Run
    entries: tuple[Entry, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


class Holding(Value, frozen=True, kw_only=True):
    """What a holder says of a run it holds: its token, and the last arrival it knows of."""

    run_id: str
    token: int
    seen: int = 0


class WorkerRecord(Value, frozen=True, kw_only=True):
    """A worker, as registered in the store."""

    id: str
    name: str
    host: str
    pid: int
    types: tuple[str, ...]
    concurrency: int
    started_at: Micros = 0
    heartbeat_at: Micros = 0
    is_dead: bool = False
    """Whether the store sees that its process has ended, however lately it was heard of. Not every store can."""


class Backlog(Value, frozen=True, kw_only=True):
    """Runs of a type that may be claimed now: how many, and since when the first of them could have been."""

    type: str
    count: int
    since: Micros


class AuditFact(Value, frozen=True, kw_only=True):
    """One fact of a run's life, written in the transaction that made it true."""

    run_id: str
    event: str
    at: Micros
    data: dict[str, str | int] = {}
