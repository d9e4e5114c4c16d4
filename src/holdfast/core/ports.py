"""The store port: the operations that a store offers, and the rules it keeps.

`create`, `claim`, `checkpoint`, `renew` and `prune` are hot or take long. Every other write is a command of a closed
union (`core.commands`), every other read a question (`core.questions`). What only some stores can do is a capability:
`Database` and `Transfer`.

S1  one key makes at most one run.
S2  a checkpoint applies wholly under a current token, or not at all.
S3  a wait satisfied before or while it is written never sleeps.
S4  claim order is priority (lower first), then rank, then ready time, then id; two claimers never share a run.
S5  an ended run changes only by `recover` or `rewind`.
S6  a lost answer is safe: any operation may be repeated.
S7  the store's clock decides leases and due times.
S8  claim cost does not grow with runs that sleep, wait, are held or have ended, nor with runs of other types.

`holdfast.testing.contract` checks them on any store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Created, LeaseRequest, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.commands import Command, Sent
from holdfast.core.hint import Hint
from holdfast.core.model import AuditFact, Entry, Event, Holding, Intent, MessageToRun, Schedule, Value, WorkerRecord
from holdfast.core.questions import Awaited, Details, Listing, Query, Stat
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored

A = TypeVar("A")


class Pruned(Value, frozen=True, kw_only=True):
    """How much a pruning removed. `has_more`: there is more to be done.

    `runs` are counted by type. `events` went because nobody may get them any more, `dead_letters` are those of a
    queue that were given up.
    """

    runs: dict[str, int] = {}
    events: int = 0
    dead_letters: int = 0
    taken: int = 0
    receipts: int = 0
    replies: int = 0
    has_more: bool = False

    def plus(self, other: Pruned) -> Pruned:
        """Both together; whether there is more is for the other to say."""
        return Pruned(
            runs={type: self.runs.get(type, 0) + other.runs.get(type, 0) for type in sorted({*self.runs, *other.runs})},
            events=self.events + other.events,
            dead_letters=self.dead_letters + other.dead_letters,
            taken=self.taken + other.taken,
            receipts=self.receipts + other.receipts,
            replies=self.replies + other.replies,
            has_more=other.has_more,
        )


class SchemaStatus(Value, frozen=True, kw_only=True):
    """The number of a store's schema, 0 if the store is empty, and the one that this code needs."""

    current: int
    wanted: int


class Finding(Value, frozen=True, kw_only=True):
    """Something a store's self-check noticed. `level`: ok, warning or problem."""

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
    """The read side. Nothing here takes a lock that a writer could wait for."""

    async def get(self, run_id: str | None = None, *, key: str | None = None) -> Details | None:
        """A run by its id, or the run that has a key, unless it was deleted."""
        ...

    async def list(self, query: Query) -> Sequence[Details]: ...

    async def history(self, run_id: str) -> Sequence[Entry]:
        """Entries in commit order, those that are not settled last."""
        ...

    async def audit(self, run_id: str) -> Sequence[AuditFact]: ...

    async def stats(self, question: Stat[A]) -> A:
        """Numbers about runs: counts, backlog, leases, slots."""
        ...

    async def catalog(self, question: Listing[A]) -> A:
        """What there is besides runs: topics, types, schedules, dead letters."""
        ...

    async def changes(self, question: Awaited[A]) -> A:
        """What has become of something that a process waits for: ends, leases, replies."""
        ...

    async def workers(self) -> Sequence[WorkerRecord]: ...

    async def check(self) -> Sequence[Finding]:
        """What the store knows about its own health and surroundings."""
        ...


class Store(Reader, Protocol):
    """Keeps runs safely. Each operation is plural and atomic, and may be repeated after a lost answer."""

    @property
    def flushes(self) -> int:
        """How many calls of `checkpoint` one worker may usefully have under way at once.

        They never have a run in common, and may be answered in any order.
        """
        ...

    # Capabilities

    @property
    def database(self) -> Database | None:
        """The store as a database for users' own tables, if it is one."""
        ...

    @property
    def transfer(self) -> Transfer | None:
        """The store as a place that runs can be exported from and imported into, if it is one."""
        ...

    # Lifetime

    async def open(self) -> None:
        """Make ready for use. An empty store gets its schema; one of another number is refused and left as it is."""
        ...

    async def close(self) -> None: ...

    def twin(self) -> Store:
        """Another store on the same runs, not open yet, for another event loop that runs at the same time.

        It may be this one, if several loops can use it at once.
        """
        ...

    def schema(self) -> SchemaStatus: ...

    async def now(self) -> Micros: ...

    # Writing

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        """Make runs, all or none. Raises `KeyConflict` with the index of the intent that was refused."""
        ...

    async def claim(self, request: ClaimRequest) -> Claimed: ...

    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Awaitable[Verdicts]:
        """Write what turns gained, one verdict each. The hot path: a future will do where a coroutine costs a task.

        At most one of each run, and in any order: what one does to another run of the batch may be before or after it.
        """
        ...

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        """Prolong leases and note that the worker lives. Blocking and thread-safe, as the heartbeat calls it."""
        ...

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        """Remove what nobody needs any more, at most `limit` of each kind; or only say how much that would be.

        `retention` is how long ended runs are kept if neither they nor their type say so. A run with many rows takes
        several calls; nobody sees it any more after the first. A dry run counts all runs that would go.
        """
        ...

    async def apply(self, command: Command[A]) -> A:
        """Carry out a command and return its answer. It raises before it writes."""
        ...

    # Hints

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        """Deliver hints on the running event loop until the returned function is called."""
        ...


# Capabilities


class Transfer(Protocol):
    """A store that runs can be exported from and imported into."""

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        """Those of the runs that are at rest, each with all that belongs to it as it is at one instant."""
        ...

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        """The events beyond a number that some run may still receive, in the order of their numbers."""
        ...

    async def last_event(self) -> int:
        """A number that no event is above, and every event to come is."""
        ...

    async def restore(self, restoration: Restoration) -> Restored:
        """Write what comes from another store as it was there, each run or not at all.

        Events to come get higher numbers than any that its runs know. A run that is not at rest is refused with
        `InvalidRequest`, and with it the whole restoration. What was restored before is left alone.
        """
        ...

    async def restore_schedules(self, schedules: Sequence[Schedule]) -> int:
        """Continue schedules here as they stood in another store, unless they exist; how many did not."""
        ...


Transaction = Callable[[Any, Micros], Entry]
"""A user's function in a transaction of the store: given a connection and the time, the entry that records it.

It blocks, so it is called on a thread of the store's, with a sync connection of its driver.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transacted:
    """What became of a checkpoint with a transaction.

    `entry` is set if the transaction is committed, be it by an earlier call; `error` if its function raised, and then
    nothing of it is left. Neither is if the run was lost, and then nothing at all was written.
    """

    verdict: Verdict
    now: Micros
    entry: Entry | None = None
    error: BaseException | None = None


class Database(Protocol):
    """A store that is a database in which users keep tables of their own. Connections are those of its driver."""

    async def transact(self, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
        """Write a checkpoint and carry out a transaction, with its entry, in one commit.

        If the run is no longer the caller's nothing is left of either. If the transaction raises, only the checkpoint
        is written. If an entry is settled at `location` it is given back, and the transaction not carried out. For
        several runs it may be called at once. A caller who stops waiting leaves it to its fate, and may ask again.
        """
        ...

    def serve(self) -> Callable[[], None]:
        """For workers: carry out what producers ask for in plain SQL, until the returned function is called."""
        ...

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        """A connection with a transaction open, which is committed at the end, or rolled back if that is an error."""
        ...

    # In a transaction that is open on a connection of a user's. They are like the store's own operations, and what
    # they write is committed, or rolled back, with it; after a commit listeners are told soon. A refusal leaves the
    # transaction as it was before. `InvalidRequest` if the connection cannot be used for it. Connections may be of
    # several kinds, and some of them have to be awaited.

    def create_in(self, connection: object, intents: Sequence[Intent]) -> Awaitable[Created]: ...

    def send_in(
        self, connection: object, messages: Sequence[MessageToRun], *, by: str = ""
    ) -> Awaitable[Sequence[Sent]]: ...

    def emit_in(self, connection: object, events: Sequence[Event], *, by: str = "") -> Awaitable[Sequence[int]]: ...
