"""The store port: the operations that a store offers, and the rules it keeps.

`create`, `claim`, `checkpoint`, `renew` and `prune` are hot or long-running. Every other write is a command of a closed
union (`core.commands`), every other read a question (`core.questions`). Features of only some stores are capabilities:
`Database` and `Transfer`.

S1  one key makes at most one run.
S2  a checkpoint applies wholly under a current token, or not at all.
S3  a wait satisfied before or while it is written never sleeps.
S4  claim order is priority (lower first), then rank, then ready time, then id; two claimers never share a run.
S5  an ended run changes only by `recover` or `rewind`.
S6  a lost answer is safe: any operation may be repeated.
S7  the store's clock decides leases and due times.
S8  claim cost does not grow with runs that sleep, wait, are held or have ended, nor with runs of other types.

`holdfast.testing.contract` checks these rules on any store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Created, LeaseRequest, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.commands import Command, Sent
from holdfast.core.model import AuditFact, Entry, Event, Holding, Intent, MessageToRun, Schedule, Value, WorkerRecord
from holdfast.core.news import Hint
from holdfast.core.questions import Awaited, Details, Listing, Query, Stat
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored

A = TypeVar("A")


class Pruned(Value, frozen=True, kw_only=True):
    """The numbers of items that a pruning removed. `has_more`: more items are due.

    `runs` are counted by type. `events` had expired or overflowed. `dead_letters` are queue events that became dead
    letters, `taken` are queue events that a run had taken. `flows` are definitions that no run needs any more.
    """

    runs: dict[str, int] = {}
    events: int = 0
    dead_letters: int = 0
    taken: int = 0
    receipts: int = 0
    replies: int = 0
    flows: int = 0
    has_more: bool = False

    def plus(self, other: Pruned) -> Pruned:
        """Return the sum of both. `has_more` is that of `other`."""
        return Pruned(
            runs={type: self.runs.get(type, 0) + other.runs.get(type, 0) for type in sorted({*self.runs, *other.runs})},
            events=self.events + other.events,
            dead_letters=self.dead_letters + other.dead_letters,
            taken=self.taken + other.taken,
            receipts=self.receipts + other.receipts,
            replies=self.replies + other.replies,
            flows=self.flows + other.flows,
            has_more=other.has_more,
        )


class SchemaStep(Value, frozen=True, kw_only=True):
    """A numbered change of a schema. `is_compatible`: workers of the number before it go on."""

    number: int
    name: str
    about: str
    is_compatible: bool


class AppliedStep(Value, frozen=True, kw_only=True):
    """A step that a store has gone through: when, and which version of holdfast applied it."""

    number: int
    name: str
    at: Micros
    version: str


class SchemaStatus(Value, frozen=True, kw_only=True):
    """The schema number of a store (0 if it is empty), and the number that this code needs.

    `compatible_from` is the lowest number whose code may use the store (0: only its own number). `pending` are the
    steps between both numbers, `applied` those that the store has recorded, each in the order of their numbers.
    """

    current: int
    wanted: int
    compatible_from: int = 0
    pending: tuple[SchemaStep, ...] = ()
    applied: tuple[AppliedStep, ...] = ()


Report = Callable[[str], None]
"""Called during a migration with a line about its progress, from any thread."""


class Finding(Value, frozen=True, kw_only=True):
    """One result of a store's self-check. `level`: ok, warning or problem."""

    level: str
    subject: str
    text: str

    @classmethod
    def ok(cls, subject: str, text: str) -> Finding:
        return cls(level="ok", subject=subject, text=text)

    @classmethod
    def warning(cls, subject: str, text: str) -> Finding:
        return cls(level="warning", subject=subject, text=text)

    @classmethod
    def problem(cls, subject: str, text: str) -> Finding:
        return cls(level="problem", subject=subject, text=text)


class Reader(Protocol):
    """The read side of a store. No read takes a lock that a writer could wait for."""

    async def get(self, run_id: str | None = None, *, key: str | None = None) -> Details | None:
        """Return a run by id or by key, unless it was deleted."""
        ...

    async def list(self, query: Query) -> Sequence[Details]: ...

    async def history(self, run_id: str) -> Sequence[Entry]:
        """Return the entries in commit order, open ones last."""
        ...

    async def audit(self, run_id: str) -> Sequence[AuditFact]: ...

    async def stats(self, question: Stat[A]) -> A:
        """Return numbers about runs: counts, backlog, leases, slots."""
        ...

    async def catalog(self, question: Listing[A]) -> A:
        """Return things other than runs: topics, types, schedules, dead letters, flows."""
        ...

    async def changes(self, question: Awaited[A]) -> A:
        """Return news that a process waits for: ends, leases, replies."""
        ...

    async def workers(self) -> Sequence[WorkerRecord]: ...

    async def check(self) -> Sequence[Finding]:
        """Check the store's health and environment."""
        ...


class Store(Reader, Protocol):
    """Keeps runs safely. Each operation is plural and atomic, and may be repeated after a lost answer."""

    @property
    def concurrent_checkpoints(self) -> int:
        """Useful number of concurrent `checkpoint` calls of one worker.

        They never have a run in common, and may be answered in any order.
        """
        ...

    # Capabilities

    @property
    def database(self) -> Database | None:
        """The capability to hold users' own tables; None if the store lacks it."""
        ...

    @property
    def transfer(self) -> Transfer | None:
        """The capability to export and import runs; None if the store lacks it."""
        ...

    # Lifetime

    async def open(self, migrate: Report | None = None) -> None:
        """Open the store. An empty store gets its schema.

        With `migrate`, a store with a lower schema number is migrated, and progress is reported. Without it, a store
        that several machines share raises `SchemaOutOfDate` and stays unchanged. So does every store with a higher
        number, unless that one is compatible with this code.
        """
        ...

    async def close(self) -> None: ...

    def for_another_loop(self) -> Store:
        """Return another store on the same data, not open yet, for a second event loop that runs at the same time.

        It may be this store, if several loops can use it at once.
        """
        ...

    def schema(self) -> SchemaStatus: ...

    async def now(self) -> Micros: ...

    # Writing

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        """Create runs, all or none. Raises `KeyConflict` with the index of the refused intent."""
        ...

    async def claim(self, request: ClaimRequest) -> Claimed: ...

    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Awaitable[Verdicts]:
        """Write checkpoints and return one verdict each.

        This is the hot path. It may return a plain future, because a coroutine would cost a task. A batch has at most
        one checkpoint per run. The store applies them in any order, so an effect on another run of the batch may come
        before or after that run's own checkpoint.
        """
        ...

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        """Extend leases and record the worker's heartbeat. Blocking and thread-safe: the heartbeat thread calls it."""
        ...

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        """Remove expired data, at most `limit` of each kind, or only count it.

        `retention` applies to ended runs that have none, nor does their type. A run with many rows takes several calls;
        after the first one it is hidden. A dry run counts all runs that would be removed.
        """
        ...

    async def apply(self, command: Command[A]) -> A:
        """Carry out a command and return its answer. If it raises, nothing was written."""
        ...

    # Hints

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        """Deliver hints on the running event loop until the returned function is called."""
        ...


# Capabilities


class Transfer(Protocol):
    """A store that runs can be exported from and imported into."""

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        """Return those runs that are at rest, each with everything that belongs to it at one instant."""
        ...

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        """Return the events after a number that a run may still receive, in order of number."""
        ...

    async def last_event(self) -> int:
        """Return a number that is at least that of every event, and below that of every future event."""
        ...

    async def restore(self, restoration: Restoration) -> Restored:
        """Write data from another store unchanged. Each run is written whole or not at all.

        Future events get higher numbers than any that the restored runs know. If a run is not at rest, the whole
        restoration is refused with `InvalidRequest`. So is a flow of a type that is code here. Data that was restored
        before is not changed.
        """
        ...

    async def restore_schedules(self, schedules: Sequence[Schedule]) -> int:
        """Add schedules with their state in another store, unless they exist. Return the number added."""
        ...


Transaction = Callable[[Any, Micros], Entry]
"""A user's function in a transaction of the store. It takes a connection and the time, and returns its entry.

It blocks, so the store calls it on a thread of its own, with a sync connection of its driver.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transacted:
    """The result of a checkpoint with a transaction.

    `entry` is set if the transaction is committed, perhaps by an earlier call. `error` is set if its function raised;
    its writes are then rolled back. If the run was lost, neither is set and nothing was written.
    """

    verdict: Verdict
    now: Micros
    entry: Entry | None = None
    error: BaseException | None = None


class Database(Protocol):
    """A store that can hold users' own tables. Connections are those of its driver."""

    async def transact(self, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
        """Write a checkpoint and run a transaction, with its entry, in one commit.

        If the caller no longer holds the run, nothing is written. If the transaction raises, only the checkpoint is
        written. If the entry at `location` is already settled, it is returned and the transaction does not run. Calls
        for several runs may be concurrent. If the caller stops waiting, the call continues; the caller may repeat it.
        """
        ...

    def serve(self) -> Callable[[], None]:
        """For workers: carry out the requests of SQL producers until the returned function is called."""
        ...

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        """Return a connection with an open transaction. It commits at the end, or rolls back after an error."""
        ...

    # Operations in an open transaction of a user's connection. They work like the store's own operations. Their writes
    # are committed or rolled back with the transaction; after a commit, listeners soon get a hint. A refusal leaves the
    # transaction as it was. They raise `InvalidRequest` if the connection is not usable. Connections may be of several
    # kinds, some of which have to be awaited.

    def create_in(self, connection: object, intents: Sequence[Intent]) -> Awaitable[Created]: ...

    def send_in(
        self, connection: object, messages: Sequence[MessageToRun], *, by: str = ""
    ) -> Awaitable[Sequence[Sent]]: ...

    def emit_in(self, connection: object, events: Sequence[Event], *, by: str = "") -> Awaitable[Sequence[int]]: ...


def installed_version() -> str:
    """Return the version of holdfast, for people who read a file or a record later."""
    from importlib.metadata import PackageNotFoundError, version  # imported here: slow to load, and rarely needed

    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "of a checkout"
