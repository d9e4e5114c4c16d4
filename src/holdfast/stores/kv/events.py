"""Events: kept by topic. Numbers are reserved when an operation loads, so that no counter is contended.

An event of a topic always has a higher number than the events that were committed before it: an emit that loses the
race for the topic starts over, and gets a new number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Event, Topic
from holdfast.core.topics import EventState
from holdfast.core.transfer import KeptEvent
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import Fields, Range
from holdfast.stores.kv.workspace import Workspace

encode = msgspec.json.encode
decode_topic = msgspec.json.Decoder(Topic).decode

MISSED_AT_ONCE = 16
"""Number of events of a topic that are examined at first for one that a run has missed."""

_STATES: dict[str, EventState] = {"o": "open", "p": "pending", "h": "handed", "t": "taken"}


class StoredEvent(msgspec.Struct, frozen=True, array_like=True):
    """A kept event, as it is stored."""

    number: int
    id: str
    payload: str
    at: Micros
    reached: int = 0
    state: EventState = "open"
    holder: str | None = None
    taken_at: Micros = 0

    def arrival(self, topic: str) -> Arrival:
        return rules.event_arrival(self.number, topic, self.payload, self.at, is_exclusive=self.state != "open")

    def kept(self, topic: str) -> KeptEvent:
        return KeptEvent(
            number=self.number,
            topic=topic,
            id=self.id,
            payload=self.payload,
            at=self.at,
            reached=self.reached,
            is_queued=self.state == "pending",
        )


decode_event = msgspec.json.Decoder(StoredEvent).decode


class AgedEvent(NamedTuple):
    """A member of the index of all events: when its age began, and what it is."""

    at: Micros
    state: EventState
    number: int
    topic: str

    @classmethod
    def parsed(cls, member: str) -> AgedEvent:
        at, rest = member[: names.TIME_DIGITS], member[names.TIME_DIGITS :]
        return cls(int(at, 16), _STATES[rest[0]], int(rest[1:17], 16), rest[17:])


def aged_member(topic: str, event: StoredEvent) -> str:
    at = event.taken_at if event.state == "taken" else event.at
    return f"{names.time_text(at)}{event.state[0]}{names.number_text(event.number)}{topic}"


def _id_field(id: str) -> str:
    return f"i{id}"


def _members(event: StoredEvent) -> list[str]:
    """Return the members of an event in the index of its topic: by state and number, open ones by time too."""
    number = names.number_text(event.number)
    if event.state == "open":
        return [f"o{number}", f"@{names.time_text(event.at)}{number}"]
    return [f"p{number}"] if event.state == "pending" else []


class KvEvents:
    """Topics and kept events."""

    def __init__(self, space: Workspace) -> None:
        self._space = space

    def topics(self) -> Mapping[str, Topic]:
        fields = self._space.whole(names.TOPICS)
        return {name: decode_topic(value) for name, value in fields.items()}

    def put_topics(self, topics: Sequence[Topic]) -> None:
        if topics:
            self._space.put(names.TOPICS, {topic.name: encode(topic) for topic in topics})

    def find(self, topic: str, id: str) -> StoredEvent | None:
        number = self._space.field(names.events(topic), _id_field(id))
        return None if number is None else self._numbered(topic, int(number))

    def _numbered(self, topic: str, number: int) -> StoredEvent | None:
        value = self._space.field(names.events(topic), str(number))
        return None if value is None else decode_event(value)

    def drop(self, topic: str, number: int) -> None:
        event = self._numbered(topic, number)
        if event is None:
            return
        self._write(topic, event, None)
        partition = names.events(topic)
        fields = [str(number)]
        if self._space.field(partition, _id_field(event.id)) == b"%d" % number:
            fields.append(_id_field(event.id))
        self._space.drop(partition, fields)

    def add(self, event: Event, now: Micros, *, is_queue: bool) -> Arrival:
        number = self._space.next_number(names.EVENT_NUMBERS)
        state: EventState = "pending" if is_queue else "open"
        return self._insert(event.topic, StoredEvent(number, event.id, event.payload, now, state=state))

    def keep(self, event: KeptEvent) -> Arrival:
        number = event.number or self._space.next_number(names.EVENT_NUMBERS)
        state: EventState = "pending" if event.is_queued else "open"
        kept = StoredEvent(number, event.id, event.payload, event.at, event.reached, state=state)
        return self._insert(event.topic, kept)

    def count(self, arrival: Arrival, reached: int) -> None:
        event = self._published(arrival)
        if event is not None:
            self._write(arrival.name, event, replace(event, reached=reached))

    def hand(self, arrival: Arrival, run_id: str) -> None:
        event = self._published(arrival)
        if event is not None:
            self._write(arrival.name, event, replace(event, state="handed", holder=run_id))

    def take(self, topic: str, number: int, run_id: str, now: Micros) -> None:
        event = self._numbered(topic, number)
        if event is not None:
            self._write(topic, event, replace(event, state="taken", holder=run_id, taken_at=now))

    def give_back(self, arrival: Arrival) -> None:
        event = self._published(arrival)
        if event is not None:
            self._write(arrival.name, event, replace(event, state="pending", holder=None))
            return
        # It was pruned since a run took it, and a rewind makes it unread again.
        number = int(arrival.ref or 0)
        payload = arrival.payload or "null"
        restored = StoredEvent(number, f"restored:{number}", payload, arrival.at, state="pending")
        self._insert(arrival.name, restored)

    def first_missed(self, topic: str, oldest: Micros, after: int) -> Arrival | None:
        """Return the first open event that a run has missed.

        Events that the run has not seen are found by number, if it has seen one, else by time: so neither the events
        before its creation nor those that it has received are read.
        """
        index, guard = names.events_index(topic), names.events(topic)
        if after:
            read = Range(index, f"o{names.number_text(after + 1)}", "p", MISSED_AT_ONCE)
        else:
            read = Range(index, f"@{names.time_text(oldest)}", "A", MISSED_AT_ONCE)
        while True:
            members = self._space.range(read, guard)
            found = sorted(int(member[-16:], 16) for member in members)
            self._space.expect([Fields(guard, tuple(map(str, found)))])
            events = (event for number in found if (event := self._numbered(topic, number)) is not None)
            chosen = next((one for one in events if one.at >= oldest and one.number > after), None)
            if chosen is not None:
                return chosen.arrival(topic)
            if len(members) < read.limit:
                return None
            read = replace(read, limit=read.limit * 8)

    def first_pending(self, topic: str) -> Arrival | None:
        members = self._space.range(Range(names.events_index(topic), "p", "q", 1), names.events(topic))
        event = self._numbered(topic, int(members[0][1:], 16)) if members else None
        return None if event is None else event.arrival(topic)

    def raise_numbers(self, last: int) -> None:
        self._space.skip_numbers(names.EVENT_NUMBERS, last)

    def _last(self) -> int:
        return self._space.last_number(names.EVENT_NUMBERS)

    def next_number(self) -> int:
        return self._space.next_number(names.EVENT_NUMBERS)

    def newest(self) -> tuple[int, Micros]:
        members = self._space.range(Range(names.EVENTS, limit=1, is_reverse=True))
        if not members:
            return self._last(), 0
        aged = AgedEvent.parsed(members[0])
        event = self._numbered(aged.topic, aged.number)
        return self._last(), aged.at if event is None else event.at

    # Writing

    def _insert(self, topic: str, event: StoredEvent) -> Arrival:
        self._space.put(names.events(topic), {_id_field(event.id): b"%d" % event.number})
        self._space.add(names.PUBLISHED, topic)
        self._write(topic, None, event)
        return event.arrival(topic)

    def _write(self, topic: str, before: StoredEvent | None, after: StoredEvent | None) -> None:
        """Write the next value of an event, with its index entries."""
        index, space = names.events_index(topic), self._space
        old = _members(before) if before is not None else []
        new = _members(after) if after is not None else []
        for member in old:
            if member not in new:
                space.remove(index, member)
        for member in new:
            if member not in old:
                space.add(index, member)
        aged_before = None if before is None else aged_member(topic, before)
        aged_after = None if after is None else aged_member(topic, after)
        if aged_before != aged_after:
            if aged_before is not None:
                space.remove(names.EVENTS, aged_before)
            if aged_after is not None:
                space.add(names.EVENTS, aged_after)
        if after is not None:
            space.put(names.events(topic), {str(after.number): encode(after)})

    def _published(self, arrival: Arrival) -> StoredEvent | None:
        return self._numbered(arrival.name, int(arrival.ref or 0))
