"""The working set: the part of a store that one operation needs, locked and loaded as records of the memory store.

Operations work on it as on the state of the memory store. A read of something that was not loaded raises `NotLoaded`.
Then nothing is written, and the operation is repeated with more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Self, TypeVar

import msgspec

from holdfast.core import limits
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.limits import Window
from holdfast.core.location import is_within
from holdfast.core.model import Arrival, AuditFact, DeadLetter, Entry, Event, Run, Topic, TypeRule, Wait
from holdfast.core.topics import EventState
from holdfast.stores.memory.state import Place, Published, Record, State
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.working.load_request import LoadRequest, NotLoaded

K = TypeVar("K")
V = TypeVar("V")


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
    awake: frozenset[str] = frozenset()
    """Runs that no arrival can wake (`rules.is_asleep` is False), so their waits were not loaded."""
    keys: list[tuple[str, str]] = []
    crowded: frozenset[str] = frozenset()
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


class MoreParked(str):
    """A marker behind the last loaded run of a queue that may have more. A lookup of it raises `NotLoaded`."""

    __slots__ = ("group",)

    def __new__(cls, group: str, last: str) -> Self:
        more = super().__new__(cls, last + "\0")  # sorts right behind the last loaded run
        more.group = group
        return more

    group: str


class Known(dict[K, V]):
    """Loaded values, by name. A name that was not asked for is unknown, not absent: its lookup raises `NotLoaded`."""

    def __init__(self, part: str, asked: Iterable[K], found: Iterable[tuple[K, V]] = ()) -> None:
        super().__init__(found)
        self._part = part
        self.asked = {*asked, *self}

    def __missing__(self, key: K) -> V:
        self._check(key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._check(key)

    def get(self, key: K, default: Any = None) -> Any:
        return super().__getitem__(key) if key in self else default

    def _check(self, key: object) -> bool:
        if isinstance(key, MoreParked):
            raise NotLoaded("groups", key.group)
        if key not in self.asked:
            raise NotLoaded(self._part, key)
        return False


class KnownLists(Known[str, list[V]]):
    """Lists, by name. An operation may append to a list that was not asked for, but not read it."""

    def __missing__(self, key: str) -> list[V]:
        found: list[V] = []
        self[key] = found
        return found

    def __contains__(self, key: object) -> bool:
        self._check(key)
        return dict.__contains__(self, key)


class UnknownWaits(tuple[Wait, ...]):  # noqa: SLOT001 - a tuple cannot have any
    """A placeholder for the waits of a run that were not loaded. Reading it raises `NotLoaded`."""

    run_id: str

    def __new__(cls, run_id: str) -> Self:
        waits = super().__new__(cls)
        waits.run_id = run_id
        return waits

    def __iter__(self) -> Iterator[Wait]:
        raise NotLoaded("waits", self.run_id)

    def __len__(self) -> int:
        raise NotLoaded("waits", self.run_id)


class Holders(set[str]):
    """The runs that have a slot. Most of them are only counted, so `discard` must name a run that has the slot."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._others = count

    def __len__(self) -> int:
        return self._others + super().__len__()

    def discard(self, run_id: object) -> None:
        if run_id in self:
            super().discard(run_id)
        else:
            self._others -= 1


class KnownSlots(dict[str, set[str]]):
    """The runs that have slots, by slot. If the type of a slot was asked for, a slot that was not found is free."""

    def __init__(self, loaded: Loaded, request: LoadRequest) -> None:
        super().__init__((name, Holders(count)) for name, count in loaded.slots)
        self._types = request.types

    def __missing__(self, name: str) -> set[str]:
        assert any(limits.is_of(name, type) for type in self._types)
        found = self[name] = Holders(0)
        return found


class KnownRules(Known[str, TypeRule]):
    """The rules of types.

    An operation asks for a missing rule when a run gives up its slots. So `NotLoaded` names the loaded runs of the
    type, and the runs that may get their slots are loaded too.
    """

    def __init__(self, loaded: Loaded, request: LoadRequest) -> None:
        super().__init__("types", request.types, ((rule.name, rule) for rule, _ in loaded.types))
        self._runs = loaded.runs

    def _check(self, key: object) -> bool:
        if key not in self.asked:
            raise NotLoaded("types", key, *(run for run in self._runs if run.type == key))
        return False


@dataclass
class WorkingRecord(Record):
    """A run with the parts that were asked for. `origin` is the record as it was loaded."""

    request: LoadRequest = field(kw_only=True)
    has_undo_before: bool | None = None
    last_position_before: int = 0
    origin: Record = field(init=False)
    is_history_cleared: bool = False
    forgotten_before: int = 0
    is_inbox_emptied: bool = False

    def loaded(self) -> None:
        """Keep a copy as `origin`, to find out later what has changed."""
        self.origin = Record(
            self.run,
            entries=dict(self.entries),
            inbox=dict(self.inbox),
            waits=self.waits,
            receipts=dict(self.receipts),
        )

    @property
    def _is_history_known(self) -> bool:
        return self.is_history_cleared or self.run.id in self.request.histories

    def recorded(self, location: str) -> Entry | None:
        run_id = self.run.id
        if location not in self.entries and not self._is_history_known:
            scopes = (scope for of_run, scope in self.request.scopes if of_run == run_id)
            if (run_id, location) not in self.request.locations and not any(is_within(location, s) for s in scopes):
                raise NotLoaded("locations", run_id, location)
        return super().recorded(location)

    def recorded_within(self, scope: str) -> list[Entry]:
        if not self._is_history_known and (self.run.id, scope) not in self.request.scopes:
            raise NotLoaded("scopes", self.run.id, scope)
        return super().recorded_within(scope)

    def history(self) -> tuple[Entry, ...]:
        if not self._is_history_known:
            raise NotLoaded("histories", self.run.id)
        return super().history()

    def forget_history(self) -> None:
        self.is_history_cleared = True
        super().forget_history()

    def leased(self) -> tuple[Entry, ...]:
        raise AssertionError("the server returns the entries of a lease")

    def forget(self, before: int) -> None:
        # The server deletes the entries, so they need not be loaded.
        self.forgotten_before = max(before, self.forgotten_before)
        super().forget(before)

    @property
    def has_undo(self) -> bool:
        if super().has_undo or self._is_history_known:
            return super().has_undo
        if self.has_undo_before is None:
            raise NotLoaded("endings", self.run.id)
        return self.has_undo_before

    @property
    def last_position(self) -> int:
        if self._is_history_known:
            return super().last_position
        if any(location not in self.entries for location in self.origin.entries):
            raise NotLoaded("histories", self.run.id)  # the dropped entry may have had the last position
        return max(super().last_position, self.last_position_before)

    def newer(self, seen: int) -> tuple[Arrival, ...]:
        if self.run.arrivals > seen:
            self._know_inbox(seen)
        return super().newer(seen)

    def unread_messages(self) -> list[Arrival]:
        self._know_inbox(0)
        return super().unread_messages()

    def knows_message(self, message_id: str, now: Micros) -> bool:
        if not any(message_id == id for _, _, id in self.request.messages):
            raise NotLoaded("messages", self.run.id, None, message_id)
        # Not all unread messages were loaded, but this one would have been.
        is_unread = any(arrival.ref == message_id for arrival in super().unread_messages())
        return is_unread or self.has_receipt(message_id, now)

    def empty_inbox(self) -> None:
        self.is_inbox_emptied = True
        super().empty_inbox()

    def has_end_of(self, child_id: str) -> bool:
        self._know_inbox(0)
        return super().has_end_of(child_id)

    def _know_inbox(self, seen: int) -> None:
        if not self.is_inbox_emptied and self.request.inboxes.get(self.run.id, seen + 1) > seen:
            raise NotLoaded("inboxes", self.run.id, seen)


def _check_queues(loaded: Loaded, request: LoadRequest) -> None:
    """Raise `NotLoaded` for a queue whose topic is not locked exclusively.

    Only one operation at a time may decide over the events of a queue.
    """
    exclusive = {arrival.name for _, arrival in loaded.arrivals if arrival.is_exclusive}
    queues = exclusive | {row.topic for row in loaded.events if row.state != "open"}
    for topic in queues & request.awaited - request.emitted:
        raise NotLoaded("emitted", topic)


def _records_of(loaded: Loaded, request: LoadRequest) -> dict[str, WorkingRecord]:
    """Return a record for each loaded run, with everything that was loaded of it."""
    records: dict[str, WorkingRecord] = {run.id: WorkingRecord(run, request=request) for run in loaded.runs}
    for run_id, waits in groupby(loaded.waits, itemgetter(0)):
        records[run_id].waits = tuple(map(itemgetter(1), waits))  # built once, because a parent may have thousands
    for run_id in loaded.awake:
        records[run_id].waits = UnknownWaits(run_id)
    for run_id, entry in (*loaded.entries, *((run_id, one) for run_id, all in loaded.histories for one in all)):
        records[run_id].entries[entry.location] = entry
    for run_id, arrival in loaded.arrivals:
        records[run_id].inbox[arrival.number] = arrival
    for run_id, message_id, at in loaded.receipts:
        records[run_id].receipts[message_id] = at
    for fact in loaded.audits:
        records[fact.run_id].audit.append(fact)
    for run_id, has_undo, last_position in loaded.undo:
        if run_id in records:
            records[run_id].has_undo_before, records[run_id].last_position_before = has_undo, last_position
    for record in records.values():
        record.loaded()
    return records


def _ends_of_loaded(group: str, places: Sequence[Place], count: int) -> Iterator[Place]:
    """Yield a `MoreParked` marker for each level that may have more waiting runs than `parked_v1` has loaded.

    It loads the first `count` runs of a queue. It also loads the first `count` runs of each later level in the priority
    of the last of them. An operation cannot reach a later priority without passing that last run.
    """
    if len(places) < count:
        return
    known = sorted(places)
    last = known[count - 1]
    beside = [[place for place in known if place[0] == level] for level in limits.levels_beside(last[0])]
    for level, since, run_id in (last, *(of_level[-1] for of_level in beside if len(of_level) == count)):
        yield level, since, MoreParked(group, run_id)


def _flows_of(loaded: Loaded) -> Iterator[tuple[str, list[FlowDefinition]]]:
    """Yield the registrations of each type that has some."""
    for type, registrations in groupby(loaded.flows, lambda one: one.type):
        yield type, list(registrations)


class WorkingSet(State):
    """The state that an operation works on, and the changes that it makes."""

    def __init__(self, loaded: Loaded, request: LoadRequest) -> None:
        _check_queues(loaded, request)
        topics = request.emitted | request.awaited
        self._events = {row.number: row for row in loaded.events if row.topic in topics}
        self._letters = {letter.number: letter for letter in loaded.letters}
        self._numbers = iter(loaded.event_numbers)
        self.facts: list[AuditFact] = []
        self._audited = request.audits
        self._request = request
        self._crowded = loaded.crowded
        self._rules = {rule.name: (rule, window) for rule, window in loaded.types}
        self._limited, self._queues, self._groups = request.limits, loaded.queues, {*request.groups}
        self._lifted = request.lifted
        self._renewals = request.renewals
        self._flows = {(one.type, one.registered_at): one for one in loaded.flows}
        self.lifted: set[str] = set()
        """Types that have lost their limits. All their waiting runs are locked, but only requested runs are loaded."""
        super().__init__(
            records=Known("runs", request.runs, _records_of(loaded, request).items()),
            keys=Known("keys", request.keys, loaded.keys),
            children=KnownLists("endings", [*loaded.closing, *request.renewals]),
            parked=KnownLists("groups", request.groups),
            slots=KnownSlots(loaded, request),
            types=KnownRules(loaded, request),
            flows=Known("flows", request.flows, _flows_of(loaded)),
            windows=Known("types", request.types, ((rule.name, window) for rule, window in loaded.types if window)),
            events=Known("emitted", topics, [(topic, []) for topic in topics]),
            topics={topic.name: topic for topic in loaded.topics},
            letters=dict(self._letters),
        )
        for parent_id, child_id in loaded.children:
            self.children[parent_id].append(child_id)
        for group, place in loaded.parked:
            self.parked[group].append(place)
        for group, count in request.groups.items():
            self.parked[group] = sorted([*self.parked[group], *_ends_of_loaded(group, self.parked[group], count)])
        for row in self._events.values():
            self.events[row.topic].append(row.published())

    @cached_property
    def unit(self) -> StateUnit:
        """The working set as a unit of work."""
        return StateUnit(self)

    def whole_flow(self, definition: FlowDefinition) -> FlowDefinition:
        if definition.type not in self._request.flow_texts:
            raise NotLoaded("flow_texts", definition.type)
        return definition

    def next_event(self) -> int:
        number = next(self._numbers, None)
        if number is None:
            raise NotLoaded("new_events")
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

    def note_once(self, record: Record, fact: AuditFact) -> None:
        if fact.run_id not in self._audited:
            raise NotLoaded("audits", fact.run_id)
        super().note_once(record, fact)

    def expect(self, run_ids: Collection[str], *, with_histories: bool) -> None:
        if unknown := set(run_ids) - self._request.runs:
            raise NotLoaded("many_runs", *unknown)
        if with_histories and (unread := set(run_ids) - self._request.histories):
            raise NotLoaded("many_histories", *unread)

    def know_all_waiting(self, topic: str) -> None:
        if topic in self._crowded:
            raise NotLoaded("waiting", topic)

    def siblings(self, parent_id: str) -> Sequence[str]:
        if parent_id not in self._renewals:
            raise NotLoaded("renewals", parent_id)
        return super().siblings(parent_id)

    def counted(self, type: str) -> Iterator[Record]:
        if type not in self._limited:
            raise NotLoaded("limits", type)
        return super().counted(type)

    def release_all(self, type: str, now: Micros) -> None:
        if type not in self._lifted:
            raise NotLoaded("lifted", type)
        super().release_all(type, now)
        self.lifted.add(type)

    def key_queues(self, type: str) -> list[str]:
        queues = {*super().key_queues(type), *(queue for queue in self._queues if limits.is_of(queue, type))}
        if unknown := queues - self._groups:
            raise NotLoaded("groups", *unknown)
        return sorted(queues)

    # Changes

    def changed_types(self) -> list[tuple[TypeRule, Window | None]]:
        """Return the new and changed types, each with the window of its limits."""
        rules = ((rule, dict.get(self.windows, name)) for name, rule in self.types.items())
        return [(rule, window) for rule, window in rules if self._rules.get(rule.name) != (rule, window)]

    def changed_flows(self) -> list[FlowDefinition]:
        """Return the new registrations, and those with another `used_at`."""
        known = (one for registrations in self.flows.values() for one in registrations)
        return [one for one in known if self._flows.get((one.type, one.registered_at)) != one]

    def changed_letters(self) -> tuple[list[DeadLetter], list[int]]:
        """Return the new dead letters, and the numbers of the removed ones."""
        made = [letter for number, letter in self.letters.items() if number not in self._letters]
        return made, [number for number in self._letters if number not in self.letters]

    def changed_events(self) -> tuple[list[EventRow], list[int]]:
        """Return the new and changed events, and the numbers of the removed ones."""
        rows = {published.number: EventRow.of(published) for kept in self.events.values() for published in kept}
        changed = [row for number, row in rows.items() if self._events.get(number) != row]
        return changed, [number for number in self._events if number not in rows]
