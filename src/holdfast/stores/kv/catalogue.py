"""The catalogue: topics and events, dead letters, schedules, flows, workers and origins of imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.model import Arrival, DeadLetter, Event, Schedule, Topic, WorkerRecord
from holdfast.core.topics import EventState
from holdfast.core.transfer import KeptEvent, Origin
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import AllFields, Fields, Range, Size
from holdfast.stores.kv.runs import KvPart

encode = msgspec.json.encode
decode_letter = msgspec.json.Decoder(DeadLetter).decode
decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_worker = msgspec.json.Decoder(WorkerRecord).decode
_decode_origin = msgspec.json.Decoder(Origin).decode

VALUE = "value"


def letter_member(letter: DeadLetter) -> str:
    """Return the member of a dead letter in the index: its number and its topic, if it has one."""
    return names.number_text(letter.number) + ("" if letter.topic is None else f" {letter.topic}")


class KvDeadLetters(KvPart):
    """Dead letters, by number."""

    def add(self, letter: DeadLetter) -> None:
        numbered = replace(letter, number=self._space.next_number(names.LETTER_NUMBERS))
        self._space.put(names.letter(numbered.number), {VALUE: encode(numbered)})
        self._space.add(names.LETTERS, letter_member(numbered))

    def get(self, number: int) -> DeadLetter | None:
        value = self._space.field(names.letter(number), VALUE)
        return None if value is None else decode_letter(value)

    def remove(self, number: int) -> bool:
        letter = self.get(number)
        if letter is not None:
            self._space.clear(names.letter(number))
            self._space.remove(names.LETTERS, letter_member(letter))
        return letter is not None


def due_member(schedule: Schedule) -> str | None:
    """Return the member of a schedule in the index of due times; None if it has none."""
    return None if schedule.next_at is None else names.time_text(schedule.next_at) + schedule.name


class KvSchedules(KvPart):
    """Schedules, by name."""

    def get(self, name: str) -> Schedule | None:
        value = self._space.field(names.schedule(name), VALUE)
        return None if value is None else decode_schedule(value)

    def put(self, schedule: Schedule) -> None:
        self._forget_due(self.get(schedule.name))
        self._space.put(names.schedule(schedule.name), {VALUE: encode(schedule)})
        self._space.add(names.SCHEDULES, schedule.name)
        if (member := due_member(schedule)) is not None:
            self._space.add(names.DUE_SCHEDULES, member)

    def remove(self, name: str) -> bool:
        schedule = self.get(name)
        if schedule is not None:
            self._forget_due(schedule)
            self._space.clear(names.schedule(name))
            self._space.remove(names.SCHEDULES, name)
        return schedule is not None

    def _forget_due(self, schedule: Schedule | None) -> None:
        if schedule is not None and (member := due_member(schedule)) is not None:
            self._space.remove(names.DUE_SCHEDULES, member)


def worker_value(record: bytes, started_at: Micros, heartbeat_at: Micros) -> bytes:
    """Return a worker as it is stored: two times, and the record without them."""
    return b"%d %d " % (started_at, heartbeat_at) + record


def worker_of(value: bytes) -> WorkerRecord:
    started_at, heartbeat_at, record = value.split(b" ", 2)
    return replace(_decode_worker(record), started_at=int(started_at), heartbeat_at=int(heartbeat_at))


class KvWorkers(KvPart):
    """Live workers, by id."""

    def beat(self, worker: WorkerRecord, now: Micros) -> None:
        known = self._space.field(names.WORKERS, worker.id)
        started_at = now if known is None else worker_of(known).started_at
        self._space.put(names.WORKERS, {worker.id: worker_value(encode(worker), started_at, now)})

    def remove(self, worker_id: str) -> None:
        self._space.drop(names.WORKERS, [worker_id])
        self.forget_idle([worker_id])

    def forget_idle(self, worker_ids: Sequence[str]) -> None:
        """Remove workers that hold no run from the index of holders. A claim adds its worker again."""
        sizes = [Size(names.held_by(worker_id)) for worker_id in worker_ids]
        # The versions, loaded together with the sizes, show if a worker has claimed a run since.
        self._space.expect([*sizes, *(Fields(names.leases_by(worker_id), ()) for worker_id in worker_ids)])
        for worker_id, size in zip(worker_ids, sizes, strict=True):
            if self._space.ask(size) == 0:
                self._space.remove(names.HOLDERS, worker_id)


class KvOrigins(KvPart):
    """Progress of imports from other stores, by the id of the export."""

    def get(self, export_id: str) -> Origin | None:
        value = self._space.field(names.origin(export_id), VALUE)
        return None if value is None else _decode_origin(value)

    def put(self, export_id: str, origin: Origin) -> None:
        self._space.put(names.origin(export_id), {VALUE: encode(origin)})


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


class KvEvents(KvPart):
    """Topics and kept events."""

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

    def first_missed(self, run_id: str, topic: str, oldest: Micros, after: int) -> Arrival | None:
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

    def next_number(self) -> int:
        return self._space.next_number(names.EVENT_NUMBERS)

    def newest(self) -> tuple[int, Micros]:
        last = self._space.last_number(names.EVENT_NUMBERS)
        members = self._space.range(Range(names.EVENTS, limit=1, is_reverse=True))
        if not members:
            return last, 0
        aged = AgedEvent.parsed(members[0])
        event = self._numbered(aged.topic, aged.number)
        return last, aged.at if event is None else event.at

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


SOURCE = "source"
PROGRAM = "program"

_decode = msgspec.json.Decoder(FlowDefinition).decode


def flows_of(fields: Mapping[str, bytes]) -> list[FlowDefinition]:
    """Return the registrations of a type in order of time, without texts."""
    return [_decode(fields[name]) for name in sorted(fields)]


def texts_read(definition: FlowDefinition) -> Fields:
    return Fields(names.flow_texts(definition.type, definition.registered_at), (SOURCE, PROGRAM))


def with_texts(definition: FlowDefinition, fields: Mapping[str, bytes]) -> FlowDefinition:
    return replace(definition, source=fields[SOURCE].decode(), program=fields[PROGRAM].decode())


class KvFlows(KvPart):
    """Registrations of flows, by type and time."""

    def of(self, type: str) -> Sequence[FlowDefinition]:
        return flows_of(self._space.whole(names.flows(type)))

    def whole(self, definition: FlowDefinition) -> FlowDefinition:
        partition = names.flow_texts(definition.type, definition.registered_at)
        fields = {name: self._space.field(partition, name) or b"" for name in (SOURCE, PROGRAM)}
        return with_texts(definition, fields)

    def put(self, definition: FlowDefinition) -> None:
        field = names.time_text(definition.registered_at)
        is_known = self._space.field(names.flows(definition.type), field) is not None
        self._space.put(names.flows(definition.type), {field: encode(definition.without_texts())})
        if not is_known:
            texts = {SOURCE: definition.source.encode(), PROGRAM: definition.program.encode()}
            self._space.put(names.flow_texts(definition.type, definition.registered_at), texts)
            self._space.add(names.FLOWS, definition.type)

    def remove(self, definition: FlowDefinition) -> None:
        self._space.drop(names.flows(definition.type), [names.time_text(definition.registered_at)])
        self._space.clear(names.flow_texts(definition.type, definition.registered_at))

    def types(self) -> Sequence[str]:
        known = self._space.range(Range(names.FLOWS))
        self._space.expect(AllFields(names.flows(type)) for type in known)
        return [type for type in known if len(self.of(type)) > 1]

    def oldest_run(self, type: str) -> Micros | None:
        states = [name for name in self._space.range(Range(names.STATES)) if name.partition(":")[2] == type]
        reads = [Range(f"by:{name}", limit=1) for name in states]
        self._space.expect(reads)
        first = [member for read in reads for member in self._space.range(read)]
        return min((int(member[: names.TIME_DIGITS], 16) for member in first), default=None)
