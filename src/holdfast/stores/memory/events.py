"""Events: kept by topic, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Event, Topic
from holdfast.core.transfer import KeptEvent
from holdfast.stores.memory.state import Published, State


class StateEvents:
    """Topics and kept events, by number."""

    def __init__(self, state: State) -> None:
        self._state = state

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

    def first_missed(self, topic: str, oldest: Micros, after: int) -> Arrival | None:
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
