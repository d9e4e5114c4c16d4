"""The unit of work: the interface through which an operation reads and writes, the same on every store.

The operations in this package decide; a store only reads and writes. Each part of a unit of work is one noun of the
store. Everything in one unit of work is committed together or not at all. Each part sees the earlier writes of the
same unit.

There are four implementations: dictionaries (memory), SQL statements in a transaction (SQLite), rows that were locked
and loaded before (Postgres), and loaded partitions (key-value stores). On the last two, a read of something that was
not loaded starts the operation over (`stores.workspace`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.limits import Window
from holdfast.core.model import (
    Arrival,
    AuditFact,
    DeadLetter,
    DeadReason,
    Entry,
    Event,
    Fence,
    Run,
    RunOptions,
    Schedule,
    Topic,
    TypeRule,
    Wait,
    WorkerRecord,
)
from holdfast.core.news import News
from holdfast.core.retention import Verdict, verdict
from holdfast.core.topics import EventState
from holdfast.core.transfer import KeptEvent, Origin


class OddRow(ValueError):
    """A row that cannot be decoded.

    Not a `HoldfastError`: a store takes that for a refusal before the first write, and commits the transaction.
    """


class Runs(Protocol):
    """Runs, by id and by key."""

    def get(self, run_id: str) -> Run | None:
        """Return a run as it is now. What it was started with (payload, tags, options) may be missing."""
        ...

    def whole(self, run_id: str) -> Run | None:
        """Return a run with its payload, tags and options."""
        ...

    def options(self, run: Run) -> RunOptions:
        """Return the options that a run was started with."""
        ...

    def put(self, run: Run) -> None:
        """Write the next value of a run that was read here, all but its key (see `set_key`)."""
        ...

    def add(self, runs: Sequence[Run]) -> None:
        """Insert new runs, with their keys."""
        ...

    def existing(self, run_ids: Sequence[str]) -> set[str]:
        """Return the ids that belong to a run."""
        ...

    def expect(self, run_ids: Collection[str], *, with_histories: bool = False) -> None:
        """Announce reads of these runs, and of their histories and audit facts. A store may load them all at once."""
        ...

    def with_key(self, key: str) -> str | None:
        """Return the id of the run that has a key."""
        ...

    def holding(self, keys: Sequence[str]) -> dict[str, Run]:
        """Return the runs that have these keys, by key, each with its payload, tags and options."""
        ...

    def set_key(self, run: Run, key: str | None) -> None:
        """Give a run a key that no other run has, or with None remove its key."""
        ...

    def fences(self, run_ids: Sequence[str]) -> Mapping[str, Run | Fence]:
        """Return the fence of each run that exists, by id. It decides whether a worker still holds the run."""
        ...

    def prolong(self, run_ids: Sequence[str], until: Micros) -> None:
        """Set the instant at which the leases of runs end."""
        ...

    def publish(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set values that a run publishes with `set_value`."""
        ...


class Families(Protocol):
    """Children, by their parent."""

    def to_cancel(self, parent_id: str) -> Sequence[str]:
        """Return the children to cancel when their parent ends. Some may have ended; cancelling those does nothing."""
        ...

    def detach(self, parent_id: str) -> None:
        """Clear the parent location of live children, so that the parent does not get their ends."""
        ...

    def parked(self, parent_id: str) -> Sequence[str]:
        """Return the live children that wait for a slot of their group."""
        ...

    def seated(self, parent_id: str | None, group: str | None) -> int:
        """Return the number of live children of a group that have a slot of it."""
        ...


class Histories(Protocol):
    """The entries of runs."""

    def entry(self, run_id: str, location: str) -> Entry | None:
        """Return the entry at a location of a run, if both exist."""
        ...

    def all(self, run_id: str) -> Sequence[Entry]:
        """Return all entries of a run in the order in which they were settled, unsettled ones last."""
        ...

    def leased(self, run_id: str) -> Sequence[Entry]:
        """Return the entries that a lease has, in the same order: all but those for people."""
        ...

    def record(self, run_id: str, token: int, entry: Entry) -> None:
        """Write an entry, unless its location has one that it does not supersede (`rules.supersedes`)."""
        ...

    def try_record(self, run_id: str, token: int, entry: Entry) -> bool:
        """Do the same as `record`, and return True if the entry was written."""
        ...

    def put(self, run_id: str, token: int, entries: Iterable[Entry]) -> None:
        """Write entries at locations that have none."""
        ...

    def drop(self, run_id: str, locations: Iterable[str]) -> None: ...

    def clear(self, run_id: str) -> None:
        """Delete all entries of a run."""
        ...

    def prune(self, run_id: str, scope: str) -> None:
        """Delete the entries of a scope, except those that a rollback would undo."""
        ...

    def forget(self, run_id: str, before: int) -> None:
        """Delete the settled entries for people whose position is below this one."""
        ...

    def has_undo(self, run_id: str) -> bool:
        """Return True if a run has an entry that can be undone."""
        ...

    def last_position(self, run_id: str) -> int:
        """Return the highest position of a run's entries, or 0."""
        ...


class Waits(Protocol):
    """The waits of runs."""

    def of(self, run_id: str) -> Sequence[Wait]:
        """Return the waits of a run, in the order in which it registered them."""
        ...

    def put(self, run_id: str, waits: Sequence[Wait]) -> None:
        """Replace the waits of a run."""
        ...

    def first(self, queue: str, location: str) -> str | None:
        """Return the run that is first in the queue for a slot, by level, start of the wait, and id.

        `location` is that of its wait: `rules.SLOT_LOCATION` for a group, `rules.LIMIT_LOCATION` for a limit.
        """
        ...

    def first_at(self, queue: str, level: int) -> str | None:
        """Return the first run of one level in the queue for a slot of a limit."""
        ...

    def for_event(self, topic: str) -> Iterable[tuple[str, Sequence[Wait]]]:
        """Return the runs that wait for an event of a topic, each with its waits for it."""
        ...

    def in_line(self, topic: str) -> Iterable[tuple[str, Wait]]:
        """Return each wait for an event of a topic, with its run, longest wait first."""
        ...


Taken = tuple[str, str, str | None, bool]
"""An arrival that was taken out of an inbox: kind, name, reference, and whether it is exclusive."""


class Inboxes(Protocol):
    """Unread arrivals of runs, receipts of received messages, and replies."""

    def add(self, run_id: str, arrival: Arrival) -> None: ...

    def put(self, run_id: str, arrivals: Sequence[Arrival]) -> None:
        """Put arrivals into an empty inbox."""
        ...

    def newer(self, run: Run | Fence, seen: int) -> tuple[Arrival, ...]:
        """Return the arrivals in a run's inbox with numbers above `seen`."""
        ...

    def take(self, run_id: str, number: int) -> Taken | None:
        """Remove an arrival from an inbox and return it, if it is there."""
        ...

    def clear(self, run: Run) -> None: ...

    def keep_messages(self, run: Run) -> None:
        """Remove everything but the messages from an inbox."""
        ...

    def messages(self, run: Run) -> Sequence[Arrival]:
        """Return the messages in an inbox."""
        ...

    def events(self, run: Run, topic: str) -> Sequence[Arrival]:
        """Return the events of a topic in an inbox."""
        ...

    def exclusive(self, run: Run) -> Sequence[Arrival]:
        """Return the events of queues in an inbox."""
        ...

    def has_end_of(self, run: Run, child_id: str) -> bool:
        """Return True if the end of a child is in an inbox."""
        ...

    def knows_message(self, run: Run, message_id: str, now: Micros) -> bool:
        """Return True if a message is in an inbox, or has a receipt younger than `RECEIPT_RETENTION`."""
        ...

    def keep_receipts(self, run_id: str, received: Mapping[str, Micros]) -> None:
        """Keep the times at which messages were received, by message id."""
        ...

    def keep_replies(self, run_id: str, replies: Mapping[str, tuple[str, Micros]]) -> None:
        """Keep the replies of a run with their times, by message id. The first reply to a message stands."""
        ...


class PublishedEvent(Protocol):
    """The part of a kept event that decides what a repeated emit does."""

    @property
    def number(self) -> int: ...

    @property
    def at(self) -> Micros: ...

    @property
    def reached(self) -> int: ...

    @property
    def state(self) -> EventState: ...


class Events(Protocol):
    """Topics and kept events."""

    def topics(self) -> Mapping[str, Topic]:
        """Return the rules set for topics, by name."""
        ...

    def put_topics(self, topics: Sequence[Topic]) -> None:
        """Set rules for topics. If several have the same name, the last one counts."""
        ...

    def find(self, topic: str, id: str) -> PublishedEvent | None: ...

    def drop(self, topic: str, number: int) -> None: ...

    def add(self, event: Event, now: Micros, *, is_queue: bool) -> Arrival:
        """Keep an event under the next number, in a queue or open to all runs. Return it as an arrival."""
        ...

    def keep(self, event: KeptEvent) -> Arrival:
        """Keep an event from another store, under its own number, or the next one if it has none."""
        ...

    def count(self, arrival: Arrival, reached: int) -> None:
        """Write the number of runs that an event has reached."""
        ...

    def hand(self, arrival: Arrival, run_id: str) -> None:
        """Mark an event of a queue as handed to a run."""
        ...

    def take(self, topic: str, number: int, run_id: str, now: Micros) -> None:
        """Mark an event of a queue as taken for good."""
        ...

    def give_back(self, arrival: Arrival) -> None:
        """Make an event of a queue pending again. If it was pruned since a run took it, keep it again."""
        ...

    def first_missed(self, run_id: str, topic: str, oldest: Micros, after: int) -> Arrival | None:
        """Return the first open event for a run: not older than an instant, and with a number above `after`."""
        ...

    def first_pending(self, topic: str) -> Arrival | None:
        """Return the first event of a queue that no run has."""
        ...

    def raise_numbers(self, last: int) -> None:
        """Make later events get higher numbers than this."""
        ...

    def next_number(self) -> int:
        """Use up the next event number and return it."""
        ...

    def newest(self) -> tuple[int, Micros]:
        """Return the last number used, and the time of the newest kept event, or 0 if there is none."""
        ...


class TypeRows(Protocol):
    """The rules of types, by name."""

    def get(self, type: str) -> TypeRule | None: ...

    def put(self, rule: TypeRule) -> None: ...

    def is_ruled(self, type: str) -> bool:
        """Return True if a type is disabled or has limits, so that its runs cannot be leased without a claim."""
        ...


class Limits(Protocol):
    """Slots of limits, by name."""

    released: int
    """Number of runs that waited for a slot and were made ready in this unit of work."""

    def rule(self, type: str) -> TypeRule | None:
        """Return the rule of a type, or None if the type has no limits."""
        ...

    def window(self, type: str) -> Window: ...

    def keep_window(self, type: str, window: Window) -> None: ...

    def taken(self, slot: str) -> int:
        """Return the number of runs that have a slot of this name."""
        ...

    def counted(self, type: str) -> Sequence[Run]:
        """Return the runs of a type that are held or have slots, with their tags."""
        ...

    def key_queues(self, type: str) -> Sequence[str]:
        """Return the queues for slots of a type's keys in which runs wait."""
        ...

    def release_all(self, type: str, now: Micros) -> None:
        """Make ready (`limits.release`) every run that waits because of limits that its type no longer has."""
        ...

    def tagged(self, run_id: str) -> Run:
        """Return a run with its tags if the limits of its type count them."""
        ...

    def put(self, run: Run) -> None:
        """Write the next value of a run, and take and free slots to match it."""
        ...


class Audit(Protocol):
    """The audit facts of runs."""

    def note(self, fact: AuditFact | None) -> None: ...

    def note_often(self, fact: AuditFact, count: int) -> None:
        """Note a routine fact, for the `count`-th time. Only the latest routine facts are kept (`audit.KEPT`)."""
        ...

    def note_once(self, fact: AuditFact, count: int = 1) -> None:
        """Note a fact, unless an earlier attempt at the same checkpoint has noted it. `count` is as in `note_often`."""
        ...

    def has_request(self, run_id: str, request_id: str) -> bool:
        """Return True if a control request was applied to a run."""
        ...

    def requests(self, run_id: str) -> Sequence[AuditFact]:
        """Return at least the facts of a run that name a request or record that its key was reused."""
        ...

    def all(self, run_id: str) -> Sequence[AuditFact]: ...


class DeadLetterRows(Protocol):
    """Dead letters, by number."""

    def add(self, letter: DeadLetter) -> None:
        """Keep a dead letter under the next number."""
        ...

    def get(self, number: int) -> DeadLetter | None: ...

    def remove(self, number: int) -> bool:
        """Delete a dead letter. Return True if it existed."""
        ...


class ScheduleRows(Protocol):
    """Schedules, by name."""

    def get(self, name: str) -> Schedule | None: ...

    def put(self, schedule: Schedule) -> None: ...

    def remove(self, name: str) -> bool:
        """Delete a schedule. Return True if it existed."""
        ...


class FlowRows(Protocol):
    """Registrations of flows, by type and time."""

    def of(self, type: str) -> Sequence[FlowDefinition]:
        """Return the registrations of a type in order of time. Their texts may be missing."""
        ...

    def whole(self, definition: FlowDefinition) -> FlowDefinition:
        """Return a registration with its texts."""
        ...

    def put(self, definition: FlowDefinition) -> None:
        """Add a registration with its texts, or replace the `used_at` of one that is there."""
        ...

    def remove(self, definition: FlowDefinition) -> None: ...

    def types(self) -> Sequence[str]:
        """Return the types that have more than one registration, so that old ones may be removed. Only for pruning."""
        ...

    def oldest_run(self, type: str) -> Micros | None:
        """Return when the oldest run of a type that is still stored was created. Only for pruning."""
        ...


class WorkerRows(Protocol):
    """Live workers, by id."""

    def beat(self, worker: WorkerRecord, now: Micros) -> None:
        """Record the heartbeat of a worker."""
        ...

    def remove(self, worker_id: str) -> None: ...


class Origins(Protocol):
    """Progress of imports from other stores, by the id of the export."""

    def get(self, export_id: str) -> Origin | None: ...

    def put(self, export_id: str, origin: Origin) -> None: ...


class OldEvent(NamedTuple):
    """An event that is no longer needed."""

    number: int
    topic: str
    state: EventState


class OldRun(NamedTuple):
    """An ended run that may be due for removal. `size` is its number of rows, or 0 if the store need not count them."""

    run: Run
    retention: Micros
    is_kept_for_parent: bool
    size: int = 0

    def judge(self, now: Micros) -> Verdict:
        """Decide what happens to the run."""
        kept = self.is_kept_for_parent
        return verdict(self.run, retention=self.retention, is_kept_for_parent=kept, now=now)


class Housekeeping(Protocol):
    """Data that is no longer needed, oldest first."""

    def expired_events(self, limit: int, now: Micros) -> tuple[Sequence[OldEvent], bool]:
        """Return expired events, and True if there may be more that were not examined."""
        ...

    def surplus_events(self, limit: int) -> Sequence[OldEvent]:
        """Return the events beyond the number that their topic may keep."""
        ...

    def give_up(self, event: OldEvent, reason: DeadReason, now: Micros) -> None:
        """Keep a pending event of a queue as a dead letter."""
        ...

    def forget_receipts(self, until: Micros, limit: int) -> int:
        """Delete receipts of messages received up to an instant, at most `limit`. Return how many."""
        ...

    def forget_replies(self, until: Micros, limit: int) -> int:
        """Delete replies given up to an instant, at most `limit`. Return how many."""
        ...

    def ended_runs(self, limit: int, usual: Micros, room: int, now: Micros) -> Sequence[OldRun]:
        """Return runs that are due for removal: runs with a `purge_at` first, then the others by the time they ended.

        `usual` is the retention of runs whose type does not set one. Rows of one kind are counted up to `room`.
        """
        ...

    def defer(self, run: Run) -> None:
        """Write the new `purge_at` of a run, the instant at which it is examined again."""
        ...

    def remove(self, runs: Sequence[Run]) -> None:
        """Remove runs with everything that belongs to them."""
        ...

    def remove_part(self, run: Run, room: int, now: Micros) -> None:
        """Remove `room` rows of a run that has too many for one transaction. The run is hidden from now on."""
        ...


class UnitOfWork(Protocol):
    """All parts of a store within one transaction, and the hints to give after its commit."""

    news: News
    closing: list[str]
    """Runs that are cancelled because a run is closed, and their descendants. Empty at all other times."""

    @property
    def runs(self) -> Runs: ...

    @property
    def families(self) -> Families: ...

    @property
    def histories(self) -> Histories: ...

    @property
    def waits(self) -> Waits: ...

    @property
    def inboxes(self) -> Inboxes: ...

    @property
    def events(self) -> Events: ...

    @property
    def dead_letters(self) -> DeadLetterRows: ...

    @property
    def types(self) -> TypeRows: ...

    @property
    def flows(self) -> FlowRows: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def schedules(self) -> ScheduleRows: ...

    @property
    def workers(self) -> WorkerRows: ...

    @property
    def origins(self) -> Origins: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def housekeeping(self) -> Housekeeping: ...
