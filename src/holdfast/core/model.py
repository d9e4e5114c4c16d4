"""The model: the values that stores keep and exchange with workers.

All are frozen; a change makes a new value. Times are microseconds (see `clock`). Values of users are JSON text, which
only `codec` reads and writes.

A field is declared once, here, and stores derive their columns from it. A text, a number or an instant is kept as it
is. A mapping, a tuple or a struct is kept as JSON text, and as null if it is the default. Ids are time-ordered UUIDs
(version 7), which any process can create: rows of neighbouring runs share pages, which makes inserts several times
cheaper.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, StrEnum
from functools import cache
from textwrap import dedent
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.states import RunState
from holdfast.core.verbs import PAUSING, StopRequest

_RANDOM_BITS = 74
_PLACE_BITS = 32


_time_ns = time.time_ns
_chance = os.urandom


def new_id() -> str:
    """Return a new id. Ids sort by time to a quarter of a microsecond, so runs started in a loop keep their order."""
    milliseconds, rest = divmod(_time_ns(), 1_000_000)
    return _uuid7(milliseconds, (rest * 4096 // 1_000_000) << 62 | int.from_bytes(_chance(8), "big") >> 2)


@contextmanager
def repeatable(time_ns: Callable[[], int], chance: Callable[[int], bytes]) -> Iterator[None]:
    """Take time and randomness of all new ids from these functions, for a simulation that must be repeatable."""
    global _time_ns, _chance
    before = _time_ns, _chance
    _time_ns, _chance = time_ns, chance
    try:
        yield
    finally:
        _time_ns, _chance = before


def derived_id(origin: str, at: Micros, place: int | None = None) -> str:
    """Return the same id for the same origin and instant each time, such as a child's id from its parent and location.

    With `place`, it is one of many ids with the same origin. These sort by place.
    """
    noise = int.from_bytes(hashlib.blake2b(origin.encode(), digest_size=10).digest(), "big")
    return _uuid7(at // 1_000, noise if place is None else noise >> _PLACE_BITS << _PLACE_BITS | place)


def _uuid7(milliseconds: int, noise: int) -> str:
    noise &= (1 << _RANDOM_BITS) - 1
    high, low = noise >> 62, noise & ((1 << 62) - 1)
    text = f"{(milliseconds << 80) | (7 << 76) | (high << 64) | (2 << 62) | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


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
    """The base of everything stored or sent. Values never form cycles, so the garbage collector may skip them."""


class RunOptions(Value, frozen=True, kw_only=True):
    """Options that are set at the start of a run and never change (`start_options`). Most runs have none.

    `seed`: the run whose random numbers a fork repeats. `trace`: the `traceparent` of the start. `map_limit`: of a map.
    """

    max_run: Micros | None = None
    max_suspend: Micros | None = None
    undelivered: Undelivered = "discard"
    max_attempts: int | None = None
    by: str = ""
    seed: str | None = None
    trace: str | None = None
    map_limit: int | None = None


DEFAULT_OPTIONS = RunOptions()


class Intent(Value, frozen=True, kw_only=True):
    """A request to create a run. A start, a child and a schedule each make one.

    A parked run waits for a slot of its siblings: the end of a sibling makes the next one ready. A child with a `limit`
    is parked at its creation if that many siblings have a slot. `retention` is how long the run is kept after its end.
    Without it, the retention of the type applies.
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
        """The group of siblings that will share a limit with the run."""
        return group_of(self.parent_id, self.parent_location)


class Fence(Value, frozen=True, array_like=True):
    """The fields of a run that decide if its holder may write, and that its verdict needs. Read for every step."""

    id: str
    token: int
    worker: str | None
    arrivals: int
    stop: StopRequest | None

    @property
    def is_held(self) -> bool:
        return self.worker is not None


class Run(Value, frozen=True, kw_only=True):
    """One durable execution, in its current state.

    `worker` set means *held*: only the holder of `token` may write. `ready_at` is the only queue column: the instant
    from which the run may be claimed. For a held run it is the end of the lease. `rollback` set means that the code is
    over: the run undoes its steps and ends in that state. `stop` is how the holder is asked to release the run.
    `continued` is the payload of a generation after the first. `slots` are the slots it owns under the limits of its
    type. It gives them back when it is neither held nor claimable. `deleted_at` set means that the run is hidden.
    `purge_at` is when it is removed, if its type does not decide that: `retention` after its end, if set.
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
    stop: StopRequest | None = None
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
    def is_pausing(self) -> bool:
        """True if the run is paused as soon as its holder has released it."""
        return self.stop in PAUSING

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.token, self.worker, self.arrivals, self.stop)

    @property
    def input(self) -> str:
        """The payload of the current generation: that of the start, or that of the last `continue_as_new`."""
        return self.payload if self.continued is None else self.continued

    @property
    def end_by(self) -> Micros | None:
        """The instant at which `max_run` cancels the run; None without that option."""
        return None if self.options.max_run is None else self.start_at + self.options.max_run

    @property
    def group(self) -> str | None:
        """The group of siblings that share a limit: the children that one operation of the parent created."""
        return group_of(self.parent_id, self.parent_location)


def group_of(parent_id: str | None, location: str | None) -> str | None:
    """Return the name of a group: the children that one operation created, at locations below its own."""
    scope = (location or "").rpartition("/")[0]
    return f"{parent_id}/{scope}" if scope else None


class EntryKind(StrEnum):
    """The kind of operation that an entry records."""

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
    SNAPSHOT = "snapshot"


class EntryState(StrEnum):
    """The progress of an operation. Only settled entries have a position. They never change again."""

    STARTED = "started"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


class Entry(Value, frozen=True, kw_only=True):
    """The record at a location. `position` is its place in commit order; 0 while it is not settled.

    `ref` names the other side: the child's run id, the message's id, the event's number. `since` is the position of the
    last fact before the code asked for it. `has_undo`: a rollback has to undo it. `retry_at` is the time of the next
    attempt. On a settled entry, it is when a rewind, recover or fork went back to it: time continues from then.
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
    """The kind of thing that a suspended run waits for."""

    TIME = "time"
    RETRY = "retry"
    MESSAGE = "message"
    EVENT = "event"
    CHILD = "child"
    CHILDREN = "children"
    SLOT = "slot"


class Wait(Value, frozen=True, kw_only=True):
    """A named reason to be suspended. `names`: message names (none: any), the topic, the child's id, the group.

    `after` is, for an event, the number of the last event of this topic that the run has received. For a slot, it is
    the level (priority and rank): the lowest goes first, then the longest wait. `count` is, for a group of children,
    how many have to end before the run is woken.
    """

    location: str
    kind: WaitKind
    since: Micros
    names: tuple[str, ...] = ()
    deadline: Micros | None = None
    after: int = 0
    count: int = 0


class Arrival(Value, frozen=True, kw_only=True):
    """An input from outside that waits in the run's inbox, under the run's next arrival number.

    `name`: the message's name, the topic, the child's run id. `ref`: the message's id, the event's number.
    `state` and `error` are those of an ended child; its result is the payload, `group` its group of siblings.
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
    """A message to one run, addressed by id or by key."""

    id: str
    name: str
    payload: str
    run_id: str | None = None
    key: str | None = None


class Event(Value, frozen=True, kw_only=True):
    """An event published on a topic. The id makes a repeated emit harmless."""

    id: str
    topic: str
    payload: str


class Reply(Value, frozen=True, kw_only=True):
    """The answer of a run to a message it received."""

    message_id: str
    payload: str


class Topic(Value, frozen=True, kw_only=True):
    """Rules for the delivery and retention of a topic's events. A name that ends in `*` covers a family of topics."""

    name: str
    mode: TopicMode = "fanout"
    retention: Micros = EVENT_RETENTION
    max_pending: int = EVENT_MAX_PENDING


class Rate(Value, frozen=True, kw_only=True):
    """A rate limit: at most `count` in any period of this length."""

    count: int
    period: Micros


class TypeRule(Value, frozen=True, kw_only=True):
    """The settings of a type, and what workers reported about it.

    At most `concurrency` of its runs execute at once. `per_key` limits, by tag name, the runs that have the same value
    of that tag. `rate` limits how many begin. `seen_by` is the worker that last offered the type, `runtime` is that
    worker's runtime. `plan` are the steps of a pipeline, in order.
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
    plan: tuple[str, ...] = ()

    @property
    def is_limited(self) -> bool:
        return self.concurrency is not None or self.rate is not None or bool(self.per_key)

    @property
    def limits(self) -> tuple[int | None, dict[str, int], Rate | None]:
        """The limits. A change that leaves them equal affects no run."""
        return self.concurrency, self.per_key, self.rate

    def offered(self, offer: TypeOffer, worker: str, now: Micros) -> TypeRule:
        """Return the rule after a worker offered the type. A description that is already set stays."""
        return msgspec.structs.replace(
            self,
            runtime=offer.runtime,
            description=self.description or offer.description,
            seen_by=worker,
            seen_at=now,
            plan=offer.plan,
        )


class TypeChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change to the settings of a type. Unset fields stay as they are."""

    name: str
    runtime: str | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType = msgspec.UNSET
    is_enabled: bool | msgspec.UnsetType = msgspec.UNSET
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    per_key: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    rate: Rate | msgspec.UnsetType | None = msgspec.UNSET
    retention: Micros | msgspec.UnsetType | None = msgspec.UNSET

    def applied_to(self, rule: TypeRule) -> TypeRule:
        """Return the rule with this change applied."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(rule, **{n: value for n, value in named.items() if value is not msgspec.UNSET})


class TypeOffer(Value, frozen=True, kw_only=True):
    """A worker's report about a type that it can execute."""

    name: str
    runtime: str
    description: str = ""
    plan: tuple[str, ...] = ()


class DeadLetter(Value, frozen=True, kw_only=True):
    """An undeliverable item: a queue event that expired or overflowed, or a message to a run that ended.

    `topic` is set for an event, `run_id` and `name` for a message. `id` is that of the event or message. `at` is when
    it became a dead letter.
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
    """A rule that creates runs over time: at the fire times of `cron` in `zone`, or every `every` from `anchor` on.

    The fields down to `is_declared` (in code) are settings. `jitter` is the maximum delay of a run after its slot. The
    other fields are state. `next_at` is the next slot that no scheduler has handled; None while paused. `open_run_ids`
    are its runs that may not have ended, kept only if `overlap` is `skip`. `skipped` counts the slots skipped for them.
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
    parent_id: str | None = None
    retention: Micros | None = None
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

    def run_id_of(self, slot: Micros) -> str:
        """Return the id of the run of a slot, the same in every process and each time."""
        return derived_id(f"schedule {self.name}@{slot}", slot)


class Firing(Value, frozen=True, kw_only=True):
    """A scheduler's request to fire a schedule: the due slots, and the next one. Void if the schedule has changed."""

    schedule: Schedule
    slots: tuple[Micros, ...]
    next_at: Micros | None

    @property
    def run_ids(self) -> Sequence[str]:
        """The ids of the runs of its slots."""
        return [self.schedule.run_id_of(slot) for slot in self.slots]


class Lease(Value, frozen=True, kw_only=True):
    """A time-limited exclusive right to write a run, with everything its holder needs to continue it."""

    run: Run
    entries: tuple[Entry, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


class Holding(Value, frozen=True, kw_only=True):
    """A holder's statement about a run it holds: its token, and the last arrival it has seen."""

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
    """True if the store sees that the process has ended, even after a recent heartbeat. Not every store can see it."""


class Backlog(Value, frozen=True, kw_only=True):
    """The runs of a type that may be claimed now: their number, and since when the first one has been ready."""

    type: str
    count: int
    since: Micros


class AuditFact(Value, frozen=True, kw_only=True):
    """One fact of a run's life, written in the transaction that made it true."""

    run_id: str
    event: str
    at: Micros
    data: dict[str, str | int] = {}


NAMES = {"group": "family"}
"""Columns whose names differ from those of their fields, because the field's name is a keyword of SQL."""

FIXED = frozenset(
    ("id", "type", "payload", "created_at", "priority", "tags", "parent_id", "on_close", "retention", "options")
)
"""Fields of a run that never change after its creation."""

NEVER_NULL = frozenset(("names",))
"""Fields that are kept as JSON even if they have their defaults."""


class StoredColumn(NamedTuple):
    """A field of a value, as a store keeps it. `default` is `NODEFAULT` if the field has none."""

    field: str
    name: str
    annotation: Any
    type: Any
    """The type of its values, besides None."""
    default: Any

    @property
    def is_required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def is_json(self) -> bool:
        return get_origin(self.type) in (dict, tuple) or issubclass(self.scalar, msgspec.Struct)

    @property
    def is_enum(self) -> bool:
        return issubclass(self.scalar, Enum)

    @property
    def scalar(self) -> type:
        """The class of its values. A literal is a text."""
        origin = get_origin(self.type)
        return str if origin is Literal else origin or self.type


@cache
def columns_of(kind: type[msgspec.Struct]) -> dict[str, StoredColumn]:
    """Return the columns of a value, by the names of its fields, in the order of the fields."""
    return {one.name: _column(one) for one in msgspec.structs.fields(kind)}


def _column(field: msgspec.structs.FieldInfo) -> StoredColumn:
    types = get_args(field.type) if NoneType in get_args(field.type) else (field.type,)
    (of_values,) = (one for one in types if one is not NoneType)
    is_empty = field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if is_empty else field.default
    return StoredColumn(field.name, NAMES.get(field.name, field.name), field.type, of_values, default)


def compiled(name: str, text: str, known: dict[str, Any]) -> Any:
    """Return the function that a text defines. `known` are the names that it may use.

    A function that names each field executes far fewer instructions than a loop over the fields.
    """
    exec(compile(dedent(text), f"<{name} of fields>", "exec"), known)  # noqa: S102 - a text of this code base
    return known[name]
