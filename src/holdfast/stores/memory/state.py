"""The state: all data of the memory store. It decides nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.core import audit, rules
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.limits import Window
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
from holdfast.core.news import News
from holdfast.core.questions import Details
from holdfast.core.topics import EventState
from holdfast.core.transfer import Origin
from holdfast.stores.memory.run_index import RunIndex, index_of


@dataclass
class Record:
    """A run with everything that belongs to it."""

    run: Run
    entries: dict[str, Entry] = field(default_factory=dict)
    inbox: dict[int, Arrival] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = field(default_factory=dict)
    receipts: dict[str, Micros] = field(default_factory=dict)
    replies: dict[str, tuple[str, Micros]] = field(default_factory=dict)
    audit: list[AuditFact] = field(default_factory=list)
    _unread: dict[str, int] | None = None
    """The numbers of the messages in the inbox by their ids. The first look-up fills it."""

    def unread_messages(self) -> list[Arrival]:
        return [arrival for arrival in self.inbox.values() if arrival.kind is WaitKind.MESSAGE]

    def knows_message(self, message_id: str, now: Micros) -> bool:
        """Return True if a message is in the inbox, or has a receipt younger than `RECEIPT_RETENTION`."""
        if self._unread is None:
            self._unread = {}
            self._index(self.inbox.values())
        return message_id in self._unread or self.receipts.get(message_id, 0) > now - RECEIPT_RETENTION

    def _index(self, arrivals: Iterable[Arrival]) -> None:
        if self._unread is not None:
            self._unread |= {one.ref: one.number for one in arrivals if one.kind is WaitKind.MESSAGE and one.ref}

    def put_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Add arrivals to the inbox, or replace those with the same numbers."""
        for arrival in arrivals:
            self.inbox[arrival.number] = arrival
        self._index(arrivals)

    def take_arrival(self, number: int) -> Arrival | None:
        """Remove an arrival from the inbox, and return it; None if it is not there."""
        arrival = self.inbox.pop(number, None)
        if arrival is not None and self._unread is not None and self._unread.get(arrival.ref or "") == number:
            del self._unread[arrival.ref or ""]
        return arrival

    def empty_inbox(self) -> None:
        self.inbox.clear()
        self._unread = None

    def history(self) -> tuple[Entry, ...]:
        """Return the entries in the order in which they were settled, unsettled ones last."""
        return tuple(sorted(self.entries.values(), key=lambda e: (not e.is_settled, e.position, e.location)))

    def details(self) -> Details:
        return Details(run=self.run, waits=self.waits, values=dict(self.values))


@dataclass
class Published:
    """An emitted event, with its number."""

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
"""The place of a run in the queue for a slot: level, start of the wait, and run id."""


@dataclass
class State:
    """All data: runs by id, run ids by key, parent and slot, events by topic, and the rest by name or number.

    `parked` has the runs that wait for a slot, by queue, and also runs that no longer wait: only the waits of a run
    are reliable. `slots` has the runs that have each slot. Only a state with all runs of a store has an `index`: it
    is made by the first claim.
    """

    records: dict[str, Record] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    parked: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    slots: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    types: dict[str, TypeRule] = field(default_factory=dict)
    flows: dict[str, list[FlowDefinition]] = field(default_factory=dict)
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
    index: RunIndex | None = None

    def indexed(self) -> RunIndex:
        """Return the index, and keep it from now on."""
        if self.index is None:
            self.index = index_of(self.records)
        return self.index

    def add(self, run: Run) -> None:
        """Add a new run."""
        self.records[run.id] = Record(run)
        if self.index is not None:
            self.index.note(None, run)

    def put_run(self, record: Record, run: Run) -> None:
        """Change the run of a record."""
        before, record.run = record.run, run
        if self.index is not None:
            self.index.note(before, run)

    def put_waits(self, record: Record, waits: Sequence[Wait]) -> None:
        """Change the waits of a run."""
        before, record.waits = record.waits, tuple(waits)
        if self.index is not None:
            self.index.note_waits(record.run.id, before, waits)

    def remove(self, run_id: str) -> None:
        """Remove a run with everything that belongs to it."""
        record = self.records.pop(run_id)
        if self.index is not None:
            self.index.note_waits(run_id, record.waits, ())

    def next_event(self) -> int:
        """Return the number of the next event."""
        self.event_count += 1
        return self.event_count

    def next_letter(self) -> int:
        """Return the number of the next dead letter."""
        self.letter_count += 1
        return self.letter_count

    def note(self, record: Record, fact: AuditFact | None) -> None:
        """Add a fact to the audit of a run. Of the routine facts, only the latest `audit.KEPT` are kept."""
        if fact is None:
            return
        record.audit.append(fact)
        if fact.event in audit.ROUTINE:
            routine = [one for one in record.audit if one.event in audit.ROUTINE]
            if len(routine) > audit.KEPT:
                record.audit.remove(routine[0])
