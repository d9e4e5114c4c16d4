"""The state as a unit of work: dictionaries that are read and changed in place."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from holdfast.core import audit, limits, rules
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.limits import Window
from holdfast.core.location import is_for_people, is_within
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
    WaitKind,
    WorkerRecord,
)
from holdfast.core.news import News
from holdfast.core.transfer import KeptEvent, Origin
from holdfast.stores.memory.pruning import StateHousekeeping
from holdfast.stores.memory.state import Place, Published, Record, State
from holdfast.stores.operations.unit_of_work import Taken


class StateUnit:
    """All parts of a state, as a unit of work."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.closing: list[str] = []
        self.runs = StateRuns(state)
        self.families = StateFamilies(state)
        self.histories = StateHistories(state)
        self.waits = StateWaits(state)
        self.inboxes = StateInboxes(state)
        self.events = StateEvents(state)
        self.dead_letters = StateDeadLetters(state)
        self.types = StateTypes(state)
        self.flows = StateFlows(state)
        self.limits = StateLimits(state)
        self.schedules = StateSchedules(state)
        self.workers = StateWorkers(state)
        self.origins = StateOrigins(state)
        self.audit = StateAudit(state)
        self.housekeeping = StateHousekeeping(state)

    @property
    def news(self) -> News:
        return self.state.news

    @news.setter
    def news(self, news: News) -> None:
        self.state.news = news


class StatePart:
    """One noun of the state."""

    def __init__(self, state: State) -> None:
        self._state = state


class StateRuns(StatePart):
    """Runs, by id and by key."""

    def get(self, run_id: str) -> Run | None:
        record = self._state.records.get(run_id)
        return None if record is None else record.run

    whole = get

    def options(self, run: Run) -> RunOptions:
        return self._state.records[run.id].run.options

    def put(self, run: Run) -> None:
        self._state.put_run(self._state.records[run.id], run)

    def add(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._state.add(run)
            if run.key is not None:
                self._state.keys[run.key] = run.id
            if run.parent_id is not None:
                self._state.children[run.parent_id].append(run.id)

    def existing(self, run_ids: Sequence[str]) -> set[str]:
        return {run_id for run_id in run_ids if run_id in self._state.records}

    def expect(self, run_ids: Collection[str], *, with_histories: bool = False) -> None: ...

    def with_key(self, key: str) -> str | None:
        return self._state.keys.get(key)

    def holding(self, keys: Sequence[str]) -> dict[str, Run]:
        holders = ((key, self._state.keys.get(key)) for key in keys)
        return {key: self._state.records[run_id].run for key, run_id in holders if run_id is not None}

    def set_key(self, run: Run, key: str | None) -> None:
        record = self._state.records[run.id]
        if key is not None:
            self._state.keys[key] = run.id
        elif record.run.key is not None:
            self._state.keys.pop(record.run.key, None)
        self._state.put_run(record, replace(record.run, key=key))

    def fences(self, run_ids: Sequence[str]) -> Mapping[str, Run | Fence]:
        found = ((run_id, self._state.records.get(run_id)) for run_id in run_ids)
        return {run_id: record.run for run_id, record in found if record is not None}

    def prolong(self, run_ids: Sequence[str], until: Micros) -> None:
        for run_id in run_ids:
            record = self._state.records[run_id]
            self._state.put_run(record, replace(record.run, ready_at=until))

    def publish(self, run_id: str, values: Mapping[str, str]) -> None:
        self._state.records[run_id].values |= values


class StateFamilies(StatePart):
    """Children, by their parent."""

    def children_of(self, parent_id: str) -> Iterator[Record]:
        return (self._state.records[child_id] for child_id in self._state.children.get(parent_id, ()))

    def to_cancel(self, parent_id: str) -> Sequence[str]:
        return [child.run.id for child in self.children_of(parent_id) if child.run.on_close == "cancel"]

    def detach(self, parent_id: str) -> None:
        for child in self.children_of(parent_id):
            if not child.run.state.is_end:
                self._state.put_run(child, replace(child.run, parent_location=None))

    def parked(self, parent_id: str) -> Sequence[str]:
        return [child.run.id for child in self.children_of(parent_id) if rules.is_parked(child.waits)]

    def seated(self, parent_id: str | None, group: str | None) -> int:
        siblings = self.children_of(parent_id or "")
        alive = (record for record in siblings if record.run.group == group and not record.run.state.is_end)
        return sum(not rules.is_parked(record.waits) for record in alive)


class StateHistories(StatePart):
    """The entries of runs."""

    def entry(self, run_id: str, location: str) -> Entry | None:
        record = self._state.records.get(run_id)
        return None if record is None else record.entries.get(location)

    def all(self, run_id: str) -> Sequence[Entry]:
        return self._state.records[run_id].history()

    def leased(self, run_id: str) -> Sequence[Entry]:
        return [entry for entry in self.all(run_id) if not is_for_people(entry.location)]

    def record(self, run_id: str, token: int, entry: Entry) -> None:
        self.try_record(run_id, token, entry)

    def try_record(self, run_id: str, token: int, entry: Entry) -> bool:
        record = self._state.records[run_id]
        recorded = record.entries.get(entry.location)
        is_written = recorded is None or rules.supersedes(entry, recorded)
        if is_written:
            record.entries[entry.location] = entry
        return is_written

    def put(self, run_id: str, token: int, entries: Iterable[Entry]) -> None:
        self._state.records[run_id].entries |= {entry.location: entry for entry in entries}

    def drop(self, run_id: str, locations: Iterable[str]) -> None:
        for location in locations:
            self._state.records[run_id].entries.pop(location, None)

    def clear(self, run_id: str) -> None:
        self._state.records[run_id].entries.clear()

    def prune(self, run_id: str, scope: str) -> None:
        record = self._state.records[run_id]
        for entry in list(record.entries.values()):
            if is_within(entry.location, scope) and not entry.has_undo:
                del record.entries[entry.location]

    def forget(self, run_id: str, before: int) -> None:
        entries = self._state.records[run_id].entries
        for location in [at for at, one in entries.items() if is_for_people(at) and 0 < one.position < before]:
            del entries[location]

    def has_undo(self, run_id: str) -> bool:
        return any(entry.has_undo for entry in self._state.records[run_id].entries.values())

    def last_position(self, run_id: str) -> int:
        return max((entry.position for entry in self._state.records[run_id].entries.values()), default=0)


class StateWaits(StatePart):
    """The waits of runs. A run that stops waiting for a slot stays in the heap of its queue; reads skip it."""

    def of(self, run_id: str) -> Sequence[Wait]:
        return self._state.records[run_id].waits

    def put(self, run_id: str, waits: Sequence[Wait]) -> None:
        self._state.put_waits(self._state.records[run_id], waits)
        for wait in waits:
            if wait.kind is WaitKind.SLOT:
                heapq.heappush(self._state.parked[wait.names[0]], (wait.after, wait.since, run_id))

    def first(self, queue: str, location: str) -> str | None:
        waiting = self._state.parked.get(queue)
        while waiting:
            if self._is_there(queue, location, waiting[0]):
                return waiting[0][2]
            heapq.heappop(waiting)
        return None

    def first_at(self, queue: str, level: int) -> str | None:
        for place in sorted(self._state.parked.get(queue, ())):
            if place[0] > level:
                break
            if place[0] == level and self._is_there(queue, rules.LIMIT_LOCATION, place):
                return place[2]
        return None

    def _is_there(self, queue: str, location: str, place: Place) -> bool:
        """Return True if the run at a place of a queue still waits there."""
        after, since, run_id = place
        record = self._state.records.get(run_id)
        waits = record.waits if record is not None else ()
        return any(
            (wait.location, wait.names, wait.after, wait.since) == (location, (queue,), after, since) for wait in waits
        )

    def for_event(self, topic: str) -> Iterable[tuple[str, Sequence[Wait]]]:
        records, index = self._state.records, self._state.index
        for run_id in list(records) if index is None else index.waiting(topic):
            waits = [wait for wait in records[run_id].waits if wait.kind is WaitKind.EVENT and wait.names == (topic,)]
            if waits:
                yield run_id, waits

    def in_line(self, topic: str) -> Iterable[tuple[str, Wait]]:
        waiting = ((run_id, wait) for run_id, waits in self.for_event(topic) for wait in waits)
        yield from sorted(waiting, key=lambda one: (one[1].since, one[0]))


class StateInboxes(StatePart):
    """Unread arrivals of runs, receipts of received messages, and replies."""

    def add(self, run_id: str, arrival: Arrival) -> None:
        self._state.records[run_id].put_arrivals((arrival,))

    def put(self, run_id: str, arrivals: Sequence[Arrival]) -> None:
        self._state.records[run_id].put_arrivals(arrivals)

    def newer(self, run: Run | Fence, seen: int) -> tuple[Arrival, ...]:
        return tuple(one for one in self._state.records[run.id].inbox.values() if one.number > seen)

    def take(self, run_id: str, number: int) -> Taken | None:
        arrival = self._state.records[run_id].take_arrival(number)
        return None if arrival is None else (arrival.kind, arrival.name, arrival.ref, arrival.is_exclusive)

    def clear(self, run: Run) -> None:
        self._state.records[run.id].empty_inbox()

    def keep_messages(self, run: Run) -> None:
        messages = self.messages(run)
        self.clear(run)
        self.put(run.id, messages)

    def messages(self, run: Run) -> Sequence[Arrival]:
        return self._state.records[run.id].unread_messages()

    def events(self, run: Run, topic: str) -> Sequence[Arrival]:
        inbox = self._state.records[run.id].inbox.values()
        return [arrival for arrival in inbox if arrival.kind is WaitKind.EVENT and arrival.name == topic]

    def exclusive(self, run: Run) -> Sequence[Arrival]:
        return [arrival for arrival in self._state.records[run.id].inbox.values() if arrival.is_exclusive]

    def has_end_of(self, run: Run, child_id: str) -> bool:
        inbox = self._state.records[run.id].inbox.values()
        return any(arrival.kind is WaitKind.CHILD and arrival.name == child_id for arrival in inbox)

    def knows_message(self, run: Run, message_id: str, now: Micros) -> bool:
        return self._state.records[run.id].knows_message(message_id, now)

    def keep_receipts(self, run_id: str, received: Mapping[str, Micros]) -> None:
        self._state.records[run_id].receipts |= received

    def keep_replies(self, run_id: str, replies: Mapping[str, tuple[str, Micros]]) -> None:
        record = self._state.records[run_id]
        record.replies = {**replies, **record.replies}


class StateDeadLetters(StatePart):
    """Dead letters, by number."""

    def add(self, letter: DeadLetter) -> None:
        number = self._state.next_letter()
        self._state.letters[number] = replace(letter, number=number)

    def get(self, number: int) -> DeadLetter | None:
        return self._state.letters.get(number)

    def remove(self, number: int) -> bool:
        return self._state.letters.pop(number, None) is not None


class StateTypes(StatePart):
    """The rules of types, by name."""

    def get(self, type: str) -> TypeRule | None:
        return self._state.types.get(type)

    def put(self, rule: TypeRule) -> None:
        self._state.types[rule.name] = rule

    def is_ruled(self, type: str) -> bool:
        rule = self._state.types.get(type)
        return rule is not None and (rule.is_limited or not rule.is_enabled)


class StateLimits(StatePart):
    """Slots of limits, by name."""

    released = 0

    def rule(self, type: str) -> TypeRule | None:
        rule = self._state.types.get(type)
        return rule if rule is not None and rule.is_limited else None

    def window(self, type: str) -> Window:
        return self._state.windows.get(type, Window())

    def keep_window(self, type: str, window: Window) -> None:
        self._state.windows[type] = window

    def taken(self, slot: str) -> int:
        return len(self._state.slots[slot])

    def counted(self, type: str) -> Sequence[Run]:
        runs = (record.run for record in self._state.records.values())
        return [run for run in runs if run.type == type and (run.is_held or run.slots)]

    def key_queues(self, type: str) -> Sequence[str]:
        waiting = (limits.parked_at(one.waits) for one in self._state.records.values() if one.run.type == type)
        shared = (limits.type_slot(type), limits.rate_slot(type))
        return sorted({wait.names[0] for wait in waiting if wait is not None} - {*shared})

    def release_all(self, type: str, now: Micros) -> None:
        for record in self._state.records.values():
            if record.run.type == type and (wait := limits.parked_at(record.waits)) is not None:
                self._state.put_run(record, limits.release(record.run, wait.since, now))
                self._state.put_waits(record, limits.without(record.waits))

    def tagged(self, run_id: str) -> Run:
        return self._state.records[run_id].run

    def put(self, run: Run) -> None:
        record = self._state.records[run.id]
        for slot in record.run.slots:
            self._state.slots[slot].discard(run.id)
        for slot in run.slots:
            self._state.slots[slot].add(run.id)
        self._state.put_run(record, run)


class StateSchedules(StatePart):
    """Schedules, by name."""

    def get(self, name: str) -> Schedule | None:
        return self._state.schedules.get(name)

    def put(self, schedule: Schedule) -> None:
        self._state.schedules[schedule.name] = schedule

    def remove(self, name: str) -> bool:
        return self._state.schedules.pop(name, None) is not None


class StateWorkers(StatePart):
    """Live workers, by id."""

    def beat(self, worker: WorkerRecord, now: Micros) -> None:
        known = self._state.workers.get(worker.id)
        started_at = known.started_at if known else now
        self._state.workers[worker.id] = replace(worker, started_at=started_at, heartbeat_at=now)

    def remove(self, worker_id: str) -> None:
        self._state.workers.pop(worker_id, None)


class StateOrigins(StatePart):
    """Progress of imports from other stores, by the id of the export."""

    def get(self, export_id: str) -> Origin | None:
        return self._state.origins.get(export_id)

    def put(self, export_id: str, origin: Origin) -> None:
        self._state.origins[export_id] = origin


class StateAudit(StatePart):
    """The audit facts of runs."""

    def note(self, fact: AuditFact | None) -> None:
        if fact is not None:
            self._state.note(self._state.records[fact.run_id], fact)

    def note_often(self, fact: AuditFact, count: int) -> None:
        self.note(fact)

    def note_once(self, fact: AuditFact, count: int = 1) -> None:
        if all(
            (fact.event, fact.data) != (known.event, known.data) for known in self._state.records[fact.run_id].audit
        ):
            self.note(fact)

    def has_request(self, run_id: str, request_id: str) -> bool:
        return any(fact.data.get(audit.REQUEST) == request_id for fact in self._state.records[run_id].audit)

    def requests(self, run_id: str) -> Sequence[AuditFact]:
        return self._state.records[run_id].audit

    all = requests


class StateEvents(StatePart):
    """Topics and kept events, by number."""

    def topics(self) -> Mapping[str, Topic]:
        return self._state.topics

    def put_topics(self, topics: Sequence[Topic]) -> None:
        self._state.topics |= {topic.name: topic for topic in topics}

    def find(self, topic: str, id: str) -> Published | None:
        return next((one for one in self._state.events[topic] if one.event.id == id), None)

    def drop(self, topic: str, number: int) -> None:
        published = self._numbered(topic, number)
        if published is not None:
            self._state.events[topic].remove(published)

    def add(self, event: Event, now: Micros, *, is_queue: bool) -> Arrival:
        published = Published(self._state.next_event(), event, now, state="pending" if is_queue else "open")
        self._state.events[event.topic].append(published)
        return published.arrival()

    def keep(self, event: KeptEvent) -> Arrival:
        number = event.number or self._state.next_event()
        what = Event(id=event.id, topic=event.topic, payload=event.payload)
        kept = Published(number, what, event.at, event.reached, state="pending" if event.is_queued else "open")
        return self._insert(kept).arrival()

    def count(self, arrival: Arrival, reached: int) -> None:
        published = self._published(arrival)
        if published is not None:
            published.reached = reached

    def hand(self, arrival: Arrival, run_id: str) -> None:
        published = self._published(arrival)
        if published is not None:
            published.state, published.holder = "handed", run_id

    def take(self, topic: str, number: int, run_id: str, now: Micros) -> None:
        published = self._numbered(topic, number)
        if published is not None:
            published.state, published.holder, published.taken_at = "taken", run_id, now

    def give_back(self, arrival: Arrival) -> None:
        published = self._published(arrival)
        if published is None:  # pruned since a run took it; a rewind makes it unread again
            number = int(arrival.ref or 0)
            event = Event(id=f"restored:{number}", topic=arrival.name, payload=arrival.payload or "null")
            published = self._insert(Published(number, event, arrival.at))
        published.state, published.holder = "pending", None

    def first_missed(self, run_id: str, topic: str, oldest: Micros, after: int) -> Arrival | None:
        missed = (
            one for one in self._state.events[topic] if one.state == "open" and one.at >= oldest and one.number > after
        )
        return next((one.arrival() for one in missed), None)

    def first_pending(self, topic: str) -> Arrival | None:
        return next((one.arrival() for one in self._state.events[topic] if one.state == "pending"), None)

    def raise_numbers(self, last: int) -> None:
        self._state.event_count = max(self._state.event_count, last)

    def next_number(self) -> int:
        return self._state.next_event()

    def newest(self) -> tuple[int, Micros]:
        latest = max(chain.from_iterable(self._state.events.values()), key=lambda one: one.number, default=None)
        return self._state.event_count, 0 if latest is None else latest.at

    def _insert(self, published: Published) -> Published:
        """Keep an event in the order of numbers. Its number need not be the last one."""
        kept = self._state.events[published.event.topic]
        kept.append(published)
        kept.sort(key=lambda one: one.number)
        return published

    def _published(self, arrival: Arrival) -> Published | None:
        return self._numbered(arrival.name, int(arrival.ref or 0))

    def _numbered(self, topic: str, number: int) -> Published | None:
        return next((one for one in self._state.events[topic] if one.number == number), None)


class StateFlows(StatePart):
    """Registrations of flows, by type and time."""

    def of(self, type: str) -> Sequence[FlowDefinition]:
        return self._state.flows.get(type) or ()

    def whole(self, definition: FlowDefinition) -> FlowDefinition:
        return definition

    def put(self, definition: FlowDefinition) -> None:
        others = [one for one in self.of(definition.type) if one.registered_at != definition.registered_at]
        self._state.flows[definition.type] = sorted([*others, definition], key=lambda one: one.registered_at)

    def remove(self, definition: FlowDefinition) -> None:
        self._state.flows[definition.type] = [one for one in self.of(definition.type) if one != definition]

    def types(self) -> Sequence[str]:
        return sorted(type for type, known in self._state.flows.items() if len(known) > 1)

    def oldest_run(self, type: str) -> Micros | None:
        created = (one.run.created_at for one in self._state.records.values() if one.run.type == type)
        return min(created, default=None)
