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
RECEIPT_RETENTION: Micros = 86_400 * 1_000_000

OnClose = Literal["cancel", "abandon"]
Reuse = Literal["never", "after_failure", "after_end"]


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base of everything stored or sent. Values hold values, never a way back, so the collector may skip them."""


class Intent(Value, frozen=True, kw_only=True):
    """The wish that a run exist. A start, a child and a schedule all make one."""

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


class Run(Value, frozen=True, kw_only=True):
    """One durable execution, as it stands.

    `worker` set means *held*: only the holder of `token` may write. `ready_at` is the one queue column:
    the instant from which the run may be claimed, which for a held run is the end of its lease.
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

    @property
    def is_held(self) -> bool:
        return self.worker is not None


class EntryKind(StrEnum):
    """What kind of operation an entry records."""

    STEP = "step"
    TIMER = "timer"
    MESSAGE = "message"
    EVENT = "event"
    CHILD = "child"
    SEND = "send"
    EMIT = "emit"
    CANCEL = "cancel"


class EntryState(StrEnum):
    """How far an operation is. Only the settled ones have a position and never change again."""

    STARTED = "started"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


class Entry(Value, frozen=True, kw_only=True):
    """The record at a location. `position` is its place in commit order; 0 while it is not settled.

    `ref` names the other side: the child's run id, the message's id, the event's number.
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


class Wait(Value, frozen=True, kw_only=True):
    """A named reason to be suspended. `names`: message names (none: any), the topic, the child's id.

    `after` is, for an event, the number of the last one of this topic the run has had.
    """

    location: str
    kind: WaitKind
    since: Micros
    names: tuple[str, ...] = ()
    deadline: Micros | None = None
    after: int = 0


class Arrival(Value, frozen=True, kw_only=True):
    """What reached a run from outside and waits in its inbox, under the run's next arrival number.

    `name`: the message's name, the topic, the child's run id. `ref`: the message's id, the event's number.
    `state` and `error` tell how a child ended; its result is the payload.
    """

    number: int
    kind: WaitKind
    name: str
    at: Micros
    payload: str | None = None
    ref: str | None = None
    state: RunState | None = None
    error: ErrorRecord | None = None


class Message(Value, frozen=True, kw_only=True):
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


class WorkerInfo(Value, frozen=True, kw_only=True):
    """A worker, as registered in the store."""

    id: str
    name: str
    host: str
    pid: int
    types: tuple[str, ...]
    concurrency: int
    started_at: Micros = 0
    heartbeat_at: Micros = 0


class AuditFact(Value, frozen=True, kw_only=True):
    """One fact of a run's life, written in the transaction that made it true."""

    run_id: str
    event: str
    at: Micros
    data: dict[str, str | int] = {}
