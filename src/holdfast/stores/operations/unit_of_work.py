"""The unit of work: what an operation reads and writes, whatever store it runs on.

The operations in this package decide; a store only looks things up and writes things down. Each part of a unit of
work is one noun of the store. Everything that happens in one unit of work is committed together, or not at all, and
the parts see what was written before.

There are three: dictionaries (memory), SQL statements in a transaction (SQLite), and a part of the store that was
loaded and locked before (the working set of Postgres). There, asking for something that was not loaded starts the
operation over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.core.limits import Window
from holdfast.core.model import (
    Arrival,
    AuditFact,
    DeadLetter,
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
from holdfast.core.topics import EventState
from holdfast.core.transfer import KeptEvent, Origin
from holdfast.stores.operations.housekeeping import Housekeeping


class OddRow(ValueError):
    """A row that cannot be decoded. No error of holdfast, which would be a refusal: all of a transaction is undone."""


class Runs(Protocol):
    """Runs, by id and by key."""

    def get(self, run_id: str) -> Run | None:
        """A run as it is now. What it was started with (payload, tags, options) may be missing."""
        ...

    def whole(self, run_id: str) -> Run | None:
        """A run with what it was started with."""
        ...

    def options(self, run: Run) -> RunOptions:
        """What was asked for when a run was started."""
        ...

    def put(self, run: Run) -> None:
        """Give a run that was looked up here its next value; its key has a method of its own."""
        ...

    def add(self, runs: Sequence[Run]) -> None:
        """Insert new runs, with their keys."""
        ...

    def existing(self, run_ids: Sequence[str]) -> set[str]:
        """Those of the ids that belong to a run."""
        ...

    def expect(self, run_ids: Collection[str], *, with_histories: bool = False) -> None:
        """These runs are about to be looked up, or their histories and facts too: a store may load them at once."""
        ...

    def with_key(self, key: str) -> str | None:
        """The id of the run that has a key."""
        ...

    def holding(self, keys: Sequence[str]) -> dict[str, Run]:
        """The runs that have these keys, by key, with what they were started with."""
        ...

    def set_key(self, run: Run, key: str | None) -> None:
        """Give a run a key that no other run has, or take its own."""
        ...

    def fences(self, run_ids: Sequence[str]) -> Mapping[str, Run | Fence]:
        """What of each run is enough to judge whoever claims to hold it, by id."""
        ...

    def prolong(self, run_ids: Sequence[str], until: Micros) -> None:
        """Have the leases of runs end at this instant."""
        ...

    def publish(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set values that a run lets everybody know of itself."""
        ...


class Families(Protocol):
    """Children, by their parent."""

    def to_cancel(self, parent_id: str) -> Sequence[str]:
        """The live children that are cancelled when their parent ends."""
        ...

    def detach(self, parent_id: str) -> None:
        """Have live children belong to no operation of their parent any more."""
        ...

    def parked(self, parent_id: str) -> Sequence[str]:
        """The live children that wait for a slot of their group."""
        ...

    def seated(self, parent_id: str | None, group: str | None) -> int:
        """How many live children of a group have a slot of it."""
        ...


class Histories(Protocol):
    """The entries of runs."""

    def entry(self, run_id: str, location: str) -> Entry | None:
        """What stands at one location of a run, if both are there."""
        ...

    def all(self, run_id: str) -> Sequence[Entry]:
        """All entries of a run, in the order in which they were settled; the others come last."""
        ...

    def record(self, run_id: str, token: int, entry: Entry) -> None:
        """Write an entry unless `rules.supersedes` says that the one at its location stays."""
        ...

    def try_record(self, run_id: str, token: int, entry: Entry) -> bool:
        """Likewise, and tell whether it was written."""
        ...

    def put(self, run_id: str, token: int, entries: Iterable[Entry]) -> None:
        """Write entries at locations where nothing stands."""
        ...

    def drop(self, run_id: str, locations: Iterable[str]) -> None: ...

    def clear(self, run_id: str) -> None:
        """Forget all entries of a run."""
        ...

    def prune(self, run_id: str, scope: str) -> None:
        """Forget what happened in a scope, but for what would have to be undone."""
        ...

    def has_undo(self, run_id: str) -> bool:
        """Whether a run has done something that can be undone."""
        ...

    def last_position(self, run_id: str) -> int:
        """The place of the last entry of a run in commit order."""
        ...


class Waits(Protocol):
    """What runs wait for."""

    def of(self, run_id: str) -> Sequence[Wait]:
        """What a run waits for, in the order in which it named it."""
        ...

    def put(self, run_id: str, waits: Sequence[Wait]) -> None:
        """Replace what a run waits for."""
        ...

    def first(self, queue: str, location: str) -> str | None:
        """The run that comes first of those that wait for a slot, at a location: by level, since when, and id."""
        ...

    def first_at(self, queue: str, level: int) -> str | None:
        """Likewise, of those of one level that wait for a slot of a limit."""
        ...

    def for_event(self, topic: str) -> Iterable[tuple[str, Sequence[Wait]]]:
        """The runs that wait for an event of a topic, with their waits for it."""
        ...

    def in_line(self, topic: str) -> Iterable[tuple[str, Wait]]:
        """Each wait for an event of a topic and its run, the longest wait first."""
        ...


Taken = tuple[str, str, str | None, bool]
"""What is left of an arrival that was taken out of an inbox: kind, name, reference, and whether it is exclusive."""


class Inboxes(Protocol):
    """What has reached runs and is not received yet, the ids of messages that were, and replies."""

    def add(self, run_id: str, arrival: Arrival) -> None: ...

    def put(self, run_id: str, arrivals: Sequence[Arrival]) -> None:
        """Put arrivals into an empty inbox."""
        ...

    def newer(self, run: Run | Fence, seen: int) -> tuple[Arrival, ...]:
        """What waits in a run's inbox beyond the number `seen`."""
        ...

    def take(self, run_id: str, number: int) -> Taken | None:
        """Take an arrival out of an inbox, if it is there."""
        ...

    def clear(self, run: Run) -> None: ...

    def keep_messages(self, run: Run) -> None:
        """Take everything out of an inbox but the messages."""
        ...

    def messages(self, run: Run) -> Sequence[Arrival]:
        """The messages that wait in an inbox."""
        ...

    def events(self, run: Run, topic: str) -> Sequence[Arrival]:
        """The events of a topic that wait in an inbox."""
        ...

    def exclusive(self, run: Run) -> Sequence[Arrival]:
        """The events of queues that wait in an inbox."""
        ...

    def has_end_of(self, run: Run, child_id: str) -> bool:
        """Whether the end of a child waits in an inbox."""
        ...

    def knows_message(self, run: Run, message_id: str, now: Micros) -> bool:
        """Whether a message waits in an inbox, or was received not long ago."""
        ...

    def keep_receipts(self, run_id: str, received: Mapping[str, Micros]) -> None:
        """Remember when messages were received."""
        ...

    def keep_replies(self, run_id: str, replies: Mapping[str, tuple[str, Micros]]) -> None:
        """Keep what a run replied to messages and when, unless the same message has had a reply before."""
        ...


class PublishedEvent(Protocol):
    """An event that is kept, as far as somebody must know who emits it again."""

    @property
    def number(self) -> int: ...

    @property
    def at(self) -> Micros: ...

    @property
    def reached(self) -> int: ...

    @property
    def state(self) -> EventState: ...


class Events(Protocol):
    """Topics and the events that are kept."""

    def topics(self) -> Mapping[str, Topic]:
        """The rules that were set for topics, by name."""
        ...

    def put_topics(self, topics: Sequence[Topic]) -> None:
        """Set rules for topics; of several for one name the last counts."""
        ...

    def find(self, topic: str, id: str) -> PublishedEvent | None: ...

    def drop(self, topic: str, number: int) -> None: ...

    def add(self, event: Event, now: Micros, *, is_queue: bool) -> Arrival:
        """Keep an event under the next number: as one of a queue, or open for all. The answer is what a run gets."""
        ...

    def keep(self, event: KeptEvent) -> Arrival:
        """Keep an event that comes from another store, under its number or the next one."""
        ...

    def count(self, arrival: Arrival, reached: int) -> None:
        """Note how many runs an event has reached."""
        ...

    def hand(self, arrival: Arrival, run_id: str) -> None:
        """Have an event of a queue be in the hands of a run."""
        ...

    def take(self, topic: str, number: int, run_id: str, now: Micros) -> None:
        """Have an event of a queue be taken for good."""
        ...

    def give_back(self, arrival: Arrival) -> None:
        """Have an event of a queue be pending again. It may have been forgotten since it was taken."""
        ...

    def first_missed(self, topic: str, oldest: Micros, after: int) -> Arrival | None:
        """The first open event not older than an instant and beyond a number."""
        ...

    def first_pending(self, topic: str) -> Arrival | None:
        """The first event of a queue that nobody has."""
        ...

    def raise_numbers(self, last: int) -> None:
        """Have events to come get higher numbers than this."""
        ...

    def next_number(self) -> int:
        """Use up the next number."""
        ...

    def newest(self) -> tuple[int, Micros]:
        """The last number that was used, and the instant of the last event that is kept; 0 if there is none."""
        ...


class DeadLetterRows(Protocol):
    """What could not be delivered."""

    def add(self, letter: DeadLetter) -> None:
        """Keep a letter, under the next number."""
        ...

    def get(self, number: int) -> DeadLetter | None: ...

    def remove(self, number: int) -> bool:
        """Forget a letter; whether there was one."""
        ...


class TypeRows(Protocol):
    """What is known and was said of types."""

    def get(self, type: str) -> TypeRule | None: ...

    def put(self, rule: TypeRule) -> None: ...

    def is_ruled(self, type: str) -> bool:
        """Whether runs of a type cannot simply be claimed: it is switched off, or has limits."""
        ...


class Limits(Protocol):
    """Slots of limits, by their names."""

    let_go: int
    """How many runs that waited for a slot were made ready in this unit of work."""

    def rule(self, type: str) -> TypeRule | None:
        """What was said of a type; nothing if it has no limits."""
        ...

    def window(self, type: str) -> Window: ...

    def keep_window(self, type: str, window: Window) -> None: ...

    def taken(self, slot: str) -> int:
        """How many runs have a slot of this name."""
        ...

    def counted(self, type: str) -> Sequence[Run]:
        """The runs of a type that are held, or have slots; with their tags."""
        ...

    def key_queues(self, type: str) -> Sequence[str]:
        """The queues for slots of a type's keys in which somebody waits."""
        ...

    def let_all_go(self, type: str, now: Micros) -> None:
        """Make ready whoever waits because of limits that a type has no more, as `limits.let_go` says."""
        ...

    def tagged(self, run_id: str) -> Run:
        """A run with its tags, which the limits of its type may count."""
        ...

    def put(self, run: Run) -> None:
        """Give a run its next value. Who has slots follows from it."""
        ...


class ScheduleRows(Protocol):
    """Schedules, by name."""

    def get(self, name: str) -> Schedule | None: ...

    def put(self, schedule: Schedule) -> None: ...

    def remove(self, name: str) -> bool:
        """Forget a schedule; whether there was one."""
        ...


class WorkerRows(Protocol):
    """The workers that live."""

    def beat(self, worker: WorkerRecord, now: Micros) -> None:
        """Note that a worker lives."""
        ...

    def remove(self, worker_id: str) -> None: ...


class Origins(Protocol):
    """How far exports of other stores were taken in, by the id of the export."""

    def get(self, export_id: str) -> Origin | None: ...

    def put(self, export_id: str, origin: Origin) -> None: ...


class Audit(Protocol):
    """What is told of runs."""

    def note(self, fact: AuditFact | None) -> None: ...

    def note_often(self, fact: AuditFact, count: int) -> None:
        """Note what happens to a run again and again, now for the `count`-th time: only the latest are kept."""
        ...

    def note_once(self, fact: AuditFact, count: int = 1) -> None:
        """Likewise, unless the fact stands there already, from an earlier attempt at the same checkpoint."""
        ...

    def has_request(self, run_id: str, request_id: str) -> bool:
        """Whether a control request was carried out on a run."""
        ...

    def requests(self, run_id: str) -> Sequence[AuditFact]:
        """At least the facts of a run that name a request, or tell that its key was reused."""
        ...

    def all(self, run_id: str) -> Sequence[AuditFact]: ...


class UnitOfWork(Protocol):
    """All parts of a store as one transaction has them, and whom to tell of it afterwards."""

    news: News
    closing: list[str]
    """While a run is being closed: who is cancelled with it, and with them."""

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
