"""The store port: the few operations a store must offer, and the rules it keeps.

S1  one key makes at most one run.
S2  a checkpoint applies wholly under a current token, or not at all.
S3  a wait satisfied before or while it is written never sleeps.
S4  claim order is priority (lower first), then ready time, then id; two claimers never share a run.
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
from typing import Any, Protocol

from holdfast.core.checkpoint import (
    Checkpoint,
    Claimed,
    ClaimRequest,
    Control,
    Created,
    LeaseRequest,
    Verdict,
    Verdicts,
)
from holdfast.core.clock import Micros
from holdfast.core.hint import Hint
from holdfast.core.intent import matches_type
from holdfast.core.model import (
    AuditFact,
    Backlog,
    DeadLetter,
    Entry,
    Event,
    Firing,
    Holding,
    Intent,
    Message,
    Run,
    Schedule,
    Topic,
    TypeChange,
    TypeOffer,
    TypeRule,
    Value,
    Wait,
    WorkerInfo,
)
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored

PAGE_LIMIT = 1_000


class Query(Value, frozen=True, kw_only=True):
    """Which runs to list, newest first. `type` may end in `.*`; `before` is the last run of the page before.

    Runs that were deleted are listed only if `is_deleted`, and then no others.
    """

    states: frozenset[RunState] = frozenset()
    type: str | None = None
    key: str | None = None
    tags: dict[str, str] = {}
    parent_id: str | None = None
    id_prefix: str | None = None
    created_from: Micros | None = None
    created_until: Micros | None = None
    is_deleted: bool = False
    before: tuple[Micros, str] | None = None
    limit: int = 100

    def admits(self, run: Run) -> bool:
        """Whether a run is one of those asked for."""
        return (
            (not self.states or run.state in self.states)
            and (self.type is None or matches_type(run.type, self.type))
            and (self.key is None or run.key == self.key)
            and all(run.tags.get(name) == value for name, value in self.tags.items())
            and (self.parent_id is None or run.parent_id == self.parent_id)
            and (self.id_prefix is None or run.id.startswith(self.id_prefix))
            and (self.created_from is None or run.created_at >= self.created_from)
            and (self.created_until is None or run.created_at < self.created_until)
            and self.is_deleted == (run.deleted_at is not None)
            and (self.before is None or (run.created_at, run.id) < self.before)
        )


class Details(Value, frozen=True, kw_only=True):
    """All about one run that a person asks for. `unreadable`: which fields cannot be decoded, and are None; and why."""

    run: Run
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = {}
    unreadable: str | None = None


class Sent(Value, frozen=True, kw_only=True):
    """What became of one message: the run it reached, or why it did not (`unknown`, `finished`)."""

    run_id: str | None
    refused: str | None = None


class SlotUse(Value, frozen=True, kw_only=True):
    """How many runs have a slot of this name, and how many wait in its queue. `core.limits` has the names."""

    name: str
    used: int
    waiting: int


class LetterQuery(Value, frozen=True, kw_only=True):
    """Which dead letters to list, oldest first. `topic` may end in `*`; `after` is the last one of the page before."""

    topic: str | None = None
    after: int = 0
    limit: int = 100


class ScheduleQuery(Value, frozen=True, kw_only=True):
    """Which schedules to list, by name. `type` may end in `.*`; `after` is the last name of the page before."""

    name: str | None = None
    type: str | None = None
    after: str = ""
    limit: int = 100

    def admits(self, schedule: Schedule) -> bool:
        """Whether a schedule is one of those asked for."""
        return (
            (self.name is None or schedule.name == self.name)
            and (self.type is None or matches_type(schedule.type, self.type))
            and schedule.name > self.after
        )


class Due(Value, frozen=True, kw_only=True):
    """Schedules of which a slot has come, the earliest first, and when the next one comes that has not."""

    schedules: tuple[Schedule, ...]
    next_at: Micros | None
    now: Micros


class Fired(Value, frozen=True, kw_only=True):
    """What became of a firing: the runs of its slots, and the slots left out because an earlier run has not ended.

    `is_stale`: nothing, for the schedule is not as it was; somebody else fired or changed it.
    """

    run_ids: tuple[str, ...] = ()
    skipped: tuple[Micros, ...] = ()
    is_stale: bool = False


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

    async def get(self, run_id: str) -> Details | None:
        """A run, unless it was deleted."""
        ...

    async def find(self, key: str) -> str | None:
        """The id of the run that holds a key."""
        ...

    async def list(self, query: Query) -> Sequence[Details]: ...

    async def history(self, run_id: str) -> Sequence[Entry]:
        """Entries in commit order, those that are not settled last."""
        ...

    async def audit(self, run_id: str) -> Sequence[AuditFact]: ...

    async def ends(self, run_ids: Sequence[str]) -> Sequence[Run]:
        """Those of the runs that have ended, also if they were deleted."""
        ...

    async def look(self, holdings: Sequence[Holding]) -> Verdicts:
        """What a renewal would answer, without renewing."""
        ...

    async def replies(self, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """What was replied to messages, by the run's and the message's id; of those without a reply nothing."""
        ...

    async def topics(self) -> Sequence[Topic]:
        """The rules that were set for topics, by name."""
        ...

    async def types(self) -> Sequence[TypeRule]:
        """What is known and was said of types, by name. What was neither said nor seen is not there."""
        ...

    async def slots(self, type: str | None = None) -> Sequence[SlotUse]:
        """The slots that somebody has or waits for because of limits, by name; of one type, or of all."""
        ...

    async def dead_letters(self, query: LetterQuery) -> Sequence[DeadLetter]: ...

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        """Those of the runs that are at rest, each with all that belongs to it as it is at one instant."""
        ...

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        """The events that are kept for whoever waits or takes them, beyond a number and in the order of theirs."""
        ...

    async def last_event(self) -> int:
        """A number that no event is above, and every event to come is."""
        ...

    async def schedules(self, query: ScheduleQuery) -> Sequence[Schedule]: ...

    async def due_schedules(self, limit: int, after: tuple[Micros, str] = (0, "")) -> Due:
        """The first schedules that are due, from beyond the slot and name of the last one of the page before.

        Costs as much as there are due ones, whatever the number of the others.
        """
        ...

    async def counts(self) -> dict[str, dict[RunState, int]]:
        """How many runs there are, by type and state, without those that were deleted."""
        ...

    async def backlog(self) -> Sequence[Backlog]:
        """What may be claimed now, by type: runs that are ready, and those whose holder let its lease run out.

        Costs no more for runs that sleep, wait or have ended.
        """
        ...

    async def workers(self) -> Sequence[WorkerInfo]: ...

    async def held(self) -> dict[str, int]:
        """How many runs each worker holds, by its id; also one that is gone may still hold some."""
        ...

    async def orphans(self, limit: int) -> Sequence[str]:
        """Live runs that are neither held, nor ready at some time, nor waiting for something named: there are none."""
        ...

    async def check(self) -> Sequence[Finding]:
        """What the store knows about its own health and surroundings."""
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

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        """A connection with a transaction open, which is committed at the end, or rolled back if that is an error."""
        ...

    # In a transaction that is open on a connection of a user's. They are like the store's own operations, and what
    # they write is committed, or rolled back, with it; after a commit everybody is told soon. A refusal leaves the
    # transaction as it was before. `InvalidRequest` if the connection cannot be used for it. Connections may be of
    # several kinds, and some of them have to be awaited.

    def create_in(self, connection: object, intents: Sequence[Intent]) -> Awaitable[Created]: ...

    def send_in(self, connection: object, messages: Sequence[Message]) -> Awaitable[Sequence[Sent]]: ...

    def emit_in(self, connection: object, events: Sequence[Event]) -> Awaitable[Sequence[int]]: ...


class Store(Reader, Protocol):
    """Keeps runs safely. Each operation is plural and atomic, and may be repeated after a lost answer."""

    @property
    def database(self) -> Database | None:
        """The same store as a database for users' own tables, if it is one."""
        ...

    @property
    def flushes(self) -> int:
        """How many calls of `checkpoint` one worker may have under way at once and be the faster for it.

        They never have a run in common, and may be answered in any order.
        """
        ...

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

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        """Make runs, all or none. Raises `KeyConflict` with the index of the intent that was refused."""
        ...

    async def claim(self, request: ClaimRequest) -> Claimed: ...

    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Awaitable[Verdicts]:
        """Write what turns gained, one verdict each. The hot path: a future will do where a coroutine costs a task.

        At most one of each run, and in any order: what one does to another run of the batch may be before or after it.
        """
        ...

    def renew(self, worker: WorkerInfo, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        """Prolong leases and tell that the worker lives. Blocking and thread-safe: it is the heartbeat's."""
        ...

    async def retire(self, worker_id: str) -> None:
        """Forget a worker that has stopped."""
        ...

    async def send(self, messages: Sequence[Message]) -> Sequence[Sent]: ...

    async def emit(self, events: Sequence[Event]) -> Sequence[int]:
        """Publish; the answer is how many waiting runs each event reached: at most one on a topic that is a queue."""
        ...

    async def put_topics(self, topics: Sequence[Topic]) -> None:
        """Set the rules for topics. The mode counts for events emitted from now on, the limits for all."""
        ...

    async def change_types(self, changes: Sequence[TypeChange]) -> None:
        """Have types be otherwise: switched off and on, limited, described. Limits count for whatever is held already.

        Claims from now on keep to it; runs that older limits kept waiting are looked at anew.
        """
        ...

    async def offer_types(self, worker: str, offers: Sequence[TypeOffer]) -> None:
        """Note what a worker, by its name, is ready to work on."""
        ...

    async def replay_letters(self, numbers: Sequence[int]) -> int:
        """Deliver dead letters after all; how many. A message to a run that takes none stays a dead letter."""
        ...

    async def purge_letters(self, numbers: Sequence[int]) -> int:
        """Forget dead letters; how many there were."""
        ...

    async def restore(self, restoration: Restoration) -> Restored:
        """Write what comes from another store as it was there, each run or not at all.

        Events to come get higher numbers than any that its runs know. A run that is not at rest is refused with
        `InvalidRequest`, and with it the whole restoration. What was restored before is left alone.
        """
        ...

    async def restore_schedules(self, schedules: Sequence[Schedule]) -> int:
        """Have schedules go on here as they stood in another store, unless there are such; how many were not."""
        ...

    async def put_schedules(self, schedules: Sequence[Schedule]) -> Sequence[Schedule]:
        """Set what schedules are to do; how they stand afterwards. What does not change disturbs nothing."""
        ...

    async def pause_schedules(self, names: Sequence[str], *, is_paused: bool) -> Sequence[bool]:
        """Have schedules fire no more, or again from the next slot on; of each, whether that changed anything."""
        ...

    async def remove_schedules(self, names: Sequence[str]) -> Sequence[bool]:
        """Forget schedules, not their runs; of each, whether there was one."""
        ...

    async def trigger_schedule(self, name: str, run_id: str) -> bool:
        """Make a run of a schedule now, under this id, unless there is one; False if there is no such schedule."""
        ...

    async def fire(self, firings: Sequence[Firing]) -> Sequence[Fired]:
        """Make the runs of slots and go on to the next ones, each schedule if it is still as it was."""
        ...

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        """Remove what nobody needs any more, at most `limit` of each kind; or only say how much that would be.

        `retention` is how long ended runs are kept of which neither they nor their type say so. A run that has much to
        it takes several calls; nobody sees it any more after the first. A dry run counts all runs that would go.
        """
        ...

    async def control(self, run_id: str, request: Control) -> bool | None:
        """Apply a control request. False if nothing changed, None if a recovery has to be continued: repeat it.

        A recovery reopens the children of the run first, no more than `limit` in one transaction. `RunNotFound` for an
        unknown run, and for one that was deleted.
        """
        ...

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        """Have hints delivered on the running event loop until the returned function is called."""
        ...

    def serve(self) -> Callable[[], None]:
        """For workers: carry out requests of SQL producers until the returned function is called, whatever they do."""
        ...
