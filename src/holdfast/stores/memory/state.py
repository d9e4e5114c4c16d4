"""The state: all that the memory store keeps. It decides nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.core import audit, limits, rules
from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.core.limits import Window
from holdfast.core.location import is_within
from holdfast.core.model import (
    RECEIPT_RETENTION,
    Arrival,
    AuditFact,
    DeadLetter,
    Entry,
    Event,
    Run,
    Schedule,
    Topic,
    TypeRule,
    Wait,
    WaitKind,
    WorkerRecord,
)
from holdfast.core.questions import Details
from holdfast.core.topics import EventState
from holdfast.core.transfer import Origin


@dataclass
class Record:
    """A run with all that belongs to it."""

    run: Run
    entries: dict[str, Entry] = field(default_factory=dict)
    inbox: dict[int, Arrival] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = field(default_factory=dict)
    receipts: dict[str, Micros] = field(default_factory=dict)
    replies: dict[str, tuple[str, Micros]] = field(default_factory=dict)
    audit: list[AuditFact] = field(default_factory=list)

    def recorded(self, location: str) -> Entry | None:
        return self.entries.get(location)

    def recorded_within(self, scope: str) -> list[Entry]:
        """The entries of a scope, and its own."""
        return [entry for location, entry in self.entries.items() if is_within(location, scope)]

    def forget_history(self) -> None:
        self.entries.clear()

    def newer(self, seen: int) -> tuple[Arrival, ...]:
        """What waits in the inbox beyond the number `seen`."""
        return tuple(arrival for arrival in self.inbox.values() if arrival.number > seen)

    def unread_messages(self) -> list[Arrival]:
        return [arrival for arrival in self.inbox.values() if arrival.kind is WaitKind.MESSAGE]

    def knows_message(self, message_id: str, now: Micros) -> bool:
        """Whether a message is in the inbox, or was received not long ago."""
        is_unread = any(arrival.ref == message_id for arrival in self.unread_messages())
        return is_unread or self.has_receipt(message_id, now)

    def has_receipt(self, message_id: str, now: Micros) -> bool:
        return self.receipts.get(message_id, 0) > now - RECEIPT_RETENTION

    def empty_inbox(self) -> None:
        self.inbox.clear()

    def has_end_of(self, child_id: str) -> bool:
        """Whether the end of a child waits in the inbox."""
        return any(arrival.kind is WaitKind.CHILD and arrival.name == child_id for arrival in self.inbox.values())

    def history(self) -> tuple[Entry, ...]:
        """The entries, in the order in which they were settled; the others come last."""
        return tuple(sorted(self.entries.values(), key=lambda e: (not e.is_settled, e.position, e.location)))

    @property
    def has_undo(self) -> bool:
        return any(entry.has_undo for entry in self.entries.values())

    @property
    def last_position(self) -> int:
        return max((entry.position for entry in self.entries.values()), default=0)

    def details(self) -> Details:
        return Details(run=self.run, waits=self.waits, values=dict(self.values))


@dataclass
class Published:
    """An event that was emitted, under its number."""

    number: int
    event: Event
    at: Micros
    reached: int = 0
    state: EventState = "open"
    holder: str | None = None
    taken_at: Micros = 0

    def arrival(self) -> Arrival:
        event, is_exclusive = self.event, self.state != "open"
        return rules.event_arrival(self.number, event.topic, event.payload, self.at, is_exclusive=is_exclusive)


Place = tuple[int, Micros, str]
"""A place in the order of those who wait for a slot, and whose it is."""


@dataclass
class State:
    """All there is: runs by id, ids by key, by parent and by slot, events by topic, and the rest by name or number.

    `parked` are those who wait for a slot, or have waited: their waits tell. `slots` are those who have one.
    """

    records: dict[str, Record] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    parked: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    slots: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    types: dict[str, TypeRule] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    events: dict[str, list[Published]] = field(default_factory=lambda: defaultdict(list))
    event_count: int = 0
    topics: dict[str, Topic] = field(default_factory=dict)
    letters: dict[int, DeadLetter] = field(default_factory=dict)
    letter_count: int = 0
    schedules: dict[str, Schedule] = field(default_factory=dict)
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    news: News = field(default_factory=News)

    def siblings(self, parent_id: str) -> Sequence[str]:
        """All children that a run has had and are still there."""
        return self.children.get(parent_id, ())

    def expect(self, run_ids: Collection[str], *, with_histories: bool) -> None:
        """To be called before many runs are looked up, or their histories: a store may load them at once."""

    def know_all_waiting(self, topic: str) -> None:
        """To be called before nobody is said to wait for an event of a queue: a store may know only the first ones."""

    def counted(self, type: str) -> Iterator[Record]:
        """The runs of a type that are worked on, or have slots."""
        return (r for r in self.records.values() if r.run.type == type and (r.run.is_held or r.run.slots))

    def key_queues(self, type: str) -> list[str]:
        """The queues in which runs of a type wait for slots of their keys."""
        waiting = (limits.parked_at(r.waits) for r in self.records.values() if r.run.type == type)
        shared = (limits.type_slot(type), limits.rate_slot(type))
        return sorted({wait.names[0] for wait in waiting if wait is not None} - {*shared})

    def let_all_go(self, type: str, now: Micros) -> None:
        """Have nobody wait because of the limits of a type. A store may do so in one go, without a look at each."""
        for record in self.records.values():
            if record.run.type == type and (wait := limits.parked_at(record.waits)) is not None:
                record.run, record.waits = limits.let_go(record.run, wait.since, now), limits.without(record.waits)

    def next_event(self) -> int:
        """The number of the next event."""
        self.event_count += 1
        return self.event_count

    def next_letter(self) -> int:
        """The number of the next dead letter."""
        self.letter_count += 1
        return self.letter_count

    def note(self, record: Record, fact: AuditFact | None) -> None:
        """Add to what is told of a run. Of what happens to it over and over, only the latest is kept."""
        if fact is None:
            return
        record.audit.append(fact)
        if fact.event in audit.ROUTINE:
            routine = [one for one in record.audit if one.event in audit.ROUTINE]
            if len(routine) > audit.KEPT:
                record.audit.remove(routine[0])

    def note_once(self, record: Record, fact: AuditFact) -> None:
        """Note a fact unless it stands there already, from an earlier attempt at the same checkpoint."""
        if all(fact.event != known.event or fact.data != known.data for known in record.audit):
            self.note(record, fact)
