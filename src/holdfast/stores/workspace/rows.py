"""The rows of a database that one operation has locked and loaded, as a state like that of the memory store.

`row_unit` names each read before it is answered from the state. `row_changes` finds what the operation has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from holdfast.core import limits
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.limits import Window
from holdfast.core.location import is_within
from holdfast.core.model import Arrival, AuditFact, DeadLetter, Entry, Event, Run, Topic, TypeRule, Wait
from holdfast.core.topics import EventState
from holdfast.stores.memory.state import Place, Published, Record, State
from holdfast.stores.workspace import reads
from holdfast.stores.workspace.decision import BaseWorkspace, Missing
from holdfast.stores.workspace.reads import Reads, RowRead


class EventRow(msgspec.Struct, frozen=True):
    """An event as a row of the database."""

    number: int
    topic: str
    id: str
    payload: str
    at: Micros
    reached: int
    state: EventState
    holder: str | None
    taken_at: Micros

    @classmethod
    def of(cls, published: Published) -> EventRow:
        event = published.event
        return cls(
            number=published.number,
            topic=event.topic,
            id=event.id,
            payload=event.payload,
            at=published.at,
            reached=published.reached,
            state=published.state,
            holder=published.holder,
            taken_at=published.taken_at,
        )

    def published(self) -> Published:
        event = Event(id=self.id, topic=self.topic, payload=self.payload)
        return Published(self.number, event, self.at, self.reached, self.state, self.holder, self.taken_at)


class Loaded(msgspec.Struct, frozen=True):
    """The rows that a store has loaded. In a pair, the first value is the run, parent or group of the second."""

    now: Micros
    runs: list[Run]
    waits: list[tuple[str, Wait]]
    arrivals: list[tuple[str, Arrival]]
    closing: list[str]
    """Runs that may end, and the descendants that end with them."""
    awake: frozenset[str] = frozenset()
    """Runs that no arrival can wake (`rules.is_asleep` is False), so their waits were not loaded."""
    keys: list[tuple[str, str]] = []
    crowded: frozenset[str] = frozenset()
    """Queues for whose events more runs may wait than were loaded."""
    children: list[tuple[str, str]] = []
    parked: list[tuple[str, Place]] = []
    entries: list[tuple[str, Entry]] = []
    histories: list[tuple[str, list[Entry]]] = []
    undo: list[tuple[str, bool, int]] = []
    receipts: list[tuple[str, str, Micros]] = []
    audits: list[AuditFact] = []
    topics: list[Topic] = []
    events: list[EventRow] = []
    event_numbers: list[int] = []
    letters: list[DeadLetter] = []
    types: list[tuple[TypeRule, Window | None]] = []
    slots: list[tuple[str, int]] = []
    queues: list[str] = []
    flows: list[FlowDefinition] = []


class RowWorkspace(State, BaseWorkspace[RowRead]):
    """The state that one operation reads and changes. It has what the reads name, as it was `loaded`."""

    def __init__(self, loaded: Loaded, known: Reads) -> None:
        super().__init__(
            records=_records_of(loaded),
            keys=dict(loaded.keys),
            types={rule.name: rule for rule, _ in loaded.types},
            windows={rule.name: window for rule, window in loaded.types if window},
            flows={type: list(known) for type, known in groupby(loaded.flows, lambda one: one.type)},
            topics={topic.name: topic for topic in loaded.topics},
            letters={letter.number: letter for letter in loaded.letters},
        )
        self.loaded = loaded
        self.reads = known
        self.origins_of_runs = {run_id: _copied(record) for run_id, record in self.records.items()}
        """The runs as they were loaded."""
        self.undo_before = {run_id: (has_undo, position) for run_id, has_undo, position in loaded.undo}
        self.taken = dict(loaded.slots)
        """The number of runs that have each slot."""
        self.facts: list[AuditFact] = []
        self.cleared: set[str] = set()
        """Runs whose histories were deleted."""
        self.emptied: set[str] = set()
        """Runs whose inboxes were emptied."""
        self.forgotten: dict[str, int] = {}
        """Runs whose entries for people were deleted up to a position."""
        self.lifted: set[str] = set()
        """Types that have lost their limits. Only those of their waiting runs that were asked for are loaded."""
        self._awake = {*loaded.awake}
        self._closing = {*loaded.closing}
        self._numbers = iter(loaded.event_numbers)
        for parent_id, child_id in loaded.children:
            self.children[parent_id].append(child_id)
        for queue, place in loaded.parked:
            self.parked[queue].append(place)
        self._ends = {read.name: _ends(self.parked[read.name], read.count) for read in known.of(reads.QueueRead)}
        for places in self.parked.values():
            places.sort()
        for row in loaded.events:
            self.events[row.topic].append(row.published())

    # What is known

    def is_known(self, read: RowRead) -> bool:
        return read in self.reads or self._is_implied(read)

    def _is_implied(self, read: RowRead) -> bool:  # noqa: C901 - one line for each kind of read
        """Return True if a read is answered by another one, or by what the operation has written."""
        match read:
            case reads.RunRead(run_id):
                return run_id in self.records
            case reads.KeyRead(key):
                return key in self.keys
            case reads.EndingRead(run_id):
                return run_id in self._closing or self.is_new(run_id)
            case reads.ChildrenRead(run_id):
                return self.is_new(run_id)
            case reads.HistoryRead(run_id) | reads.ScopeRead(run_id, _):
                return self.is_history_known(run_id)
            case reads.EntryRead(run_id, location):
                return self._is_entry_known(run_id, location)
            case reads.InboxRead(run_id, _):
                return run_id in self.emptied or self.is_new(run_id)
            case reads.ArrivalRead(run_id, number):
                record = self.records.get(run_id)
                is_loaded = record is not None and number in record.inbox
                return is_loaded or self.is_known(reads.InboxRead(run_id, number - 1))
            case reads.WaitsRead(run_id):
                return run_id not in self._awake
            case reads.TopicRulesRead():
                return bool(self.reads.of(reads.TopicRead))
            case _:
                return False

    def _is_entry_known(self, run_id: str, location: str) -> bool:
        record = self.records.get(run_id)
        if self.is_history_known(run_id) or (record is not None and location in record.entries):
            return True
        scopes = (read.scope for read in self.reads.of(reads.ScopeRead) if read.run_id == run_id)
        return any(is_within(location, scope) for scope in scopes)

    def to_load(self, read: RowRead) -> Iterable[RowRead]:
        if isinstance(read, reads.TypeRead):
            # An operation asks for a type when a run gives up its slots. So the runs that may get them are loaded too.
            return reads.to_leave(read.type, (run for run in self.loaded.runs if run.type == read.type))
        return (read,)

    def is_history_known(self, run_id: str) -> bool:
        return reads.HistoryRead(run_id) in self.reads or run_id in self.cleared or self.is_new(run_id)

    def is_new(self, run_id: str) -> bool:
        """Return True if the operation has added a run."""
        return run_id in self.records and run_id not in self.origins_of_runs

    def expect_waits(self, run_ids: Iterable[str]) -> None:
        """Name the reads of the waits of runs. Almost always, they were loaded with the runs."""
        if self._awake:
            self.expect(reads.WaitsRead(run_id) for run_id in run_ids)

    def expect_queue(self, *queues: str) -> None:
        """Name the reads of queues."""
        if unknown := [queue for queue in queues if not self.is_known(reads.QueueRead(queue, 0))]:
            self.expect(self.more_of(*unknown))
        self.expect_waits(place[2] for queue in queues for place in self.parked.get(queue, ()))

    def expect_place(self, queue: str, place: Place | None, level: int | None = None) -> None:
        """Name a longer read of a queue, if another run may come before a place of it, or of one level of it."""
        ends = self._ends.get(queue, {})
        end = min(ends.values(), default=None) if level is None else ends.get(level)
        if end is not None and (place is None or place > end):
            self.expect(self.more_of(queue))

    def more_of(self, *queues: str) -> Sequence[reads.QueueRead]:
        """Return longer reads of queues, several times as long in each round."""
        # A change of limits may free very many runs, in as many queues as there are keys. So all known queues grow
        # together, instead of one in each round.
        known = {read.name: read.count for read in self.reads.of(reads.QueueRead)}
        is_ruling = reads.RulingRead() in self.reads
        wanted = {*known, *queues} if is_ruling and any(queue in known for queue in queues) else queues
        factor, more = (8, 4) if is_ruling else (2, 8)
        return [reads.QueueRead(queue, known.get(queue, 0) * factor + more) for queue in wanted]

    # Numbers and facts

    def next_event(self) -> int:
        number = next(self._numbers, None)
        if number is None:
            raise Missing([reads.NumbersRead(2 * len(self.loaded.event_numbers) + 4)])
        self.event_count = max(self.event_count, number)
        return number

    def next_letter(self) -> int:
        """Return a provisional number. The database assigns the final one."""
        self.letter_count -= 1
        return self.letter_count

    def note(self, record: Record, fact: AuditFact | None) -> None:
        if fact is not None:
            record.audit.append(fact)
            self.facts.append(fact)


def _records_of(loaded: Loaded) -> dict[str, Record]:
    """Return a record for each loaded run, with everything that was loaded of it.

    Rows of a run that was created too late to be locked are left out: the operation starts over if it needs the run.
    """
    records = {run.id: Record(run) for run in loaded.runs}
    for run_id, waits in groupby(loaded.waits, itemgetter(0)):
        records[run_id].waits = tuple(map(itemgetter(1), waits))  # built once, because a parent may have thousands
    for run_id, entry in (*loaded.entries, *((run_id, one) for run_id, all in loaded.histories for one in all)):
        if run_id in records:
            records[run_id].entries[entry.location] = entry
    for run_id, arrival in loaded.arrivals:
        if run_id in records:
            records[run_id].inbox[arrival.number] = arrival
    for run_id, message_id, at in loaded.receipts:
        records[run_id].receipts[message_id] = at
    for fact in loaded.audits:
        if fact.run_id in records:
            records[fact.run_id].audit.append(fact)
    return records


def _copied(record: Record) -> Record:
    return Record(
        record.run,
        entries=dict(record.entries),
        inbox=dict(record.inbox),
        waits=record.waits,
        receipts=dict(record.receipts),
    )


def _ends(places: Sequence[Place], count: int) -> dict[int, Place]:
    """Return the last loaded place of each level of a queue in which more runs may wait.

    The database loads the first `count` runs of a queue. It also loads the first `count` runs of each later level in
    the priority of the last of them. An operation cannot reach a later priority without passing that last run.
    """
    if len(places) < count:
        return {}
    known = sorted(places)
    last = known[count - 1]
    beside = [[place for place in known if place[0] == level] for level in limits.levels_beside(last[0])]
    return {place[0]: place for place in (last, *(of_level[-1] for of_level in beside if len(of_level) == count))}
