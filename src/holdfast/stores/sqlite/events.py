"""Events as rows: kept events, the rules of their topics, and the holders of queued events.

Each change is written immediately, not collected for the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import apsw

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Event, Topic
from holdfast.core.topics import FAMILY, HANDED_EXPIRY, TAKEN_RETENTION, EventState
from holdfast.core.transfer import KeptEvent
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_TOPICS = f"select {rows.listed(Topic)} from topic order by name"  # full scan: there are few topics
_PUT_TOPIC = rows.upsert("topic", rows.listed(Topic), "name")

# `_LAST_CHARACTER` bounds a family of topics: topic names cannot contain it, because it is not printable.
_RECONSIDER = """
    update event
    set expires_at = null
    where topic >= ?1
      and topic <= ?2
      and state in ('open', 'pending')
"""  # event_topic

_LAST_CHARACTER = chr(0x10FFFF)

_FIND = """
    select number, at, reached, state
    from event
    where topic = ?
      and id = ?
"""  # event_once

_DROP = "delete from event where number = ?"  # by the primary key
LATEST = "select at from event where number = (select max(number) from event)"  # by the primary key, twice

_ADD = """
    insert into event (topic, id, payload, at, reached, state)
    values (?, ?, ?, ?, 0, ?)
    returning number
"""

_KEEP = rows.insertion("event", "number, topic, id, payload, at, reached, state") + " returning number"
_COUNT = "update event set reached = ? where number = ?"  # by the primary key

_HAND = f"""
    update event
    set state = 'handed', holder = ?, expires_at = {HANDED_EXPIRY}
    where number = ?
"""  # by the primary key

_TAKE = "update event set state = 'taken', holder = ?, expires_at = ? where number = ?"  # by the primary key

# An insert, because pruning may have removed the event since a run took it, and a rewind of that run gives it back.
_GIVE_BACK = """
    insert into event (number, topic, id, payload, at, reached, state)
    values (?1, ?2, 'restored:' || ?1, ?3, ?4, 0, 'pending')
    on conflict (number) do update
    set state = 'pending', holder = null, expires_at = null
"""

# A higher number never has an earlier time. So the search starts at the time of the last event that the run received,
# not at the first event of the topic.
MISSED = """
    select number, payload, at
    from event
    where topic = ?1
      and at >= max(?2, ifnull((select at from event where number = ?3), ?2))
      and number > ?3
      and state = 'open'
    order by at, number
    limit 1
"""  # event_topic

PENDING = """
    select number, payload, at
    from event indexed by event_pending
    where topic = ?
      and state = 'pending'
    order by number
    limit 1
"""

_LAST_EVENT = "select seq from sqlite_sequence where name = 'event'"

# SQLite adds the row for this table with its first insert, so the row may be missing.
_RAISE = "update sqlite_sequence set seq = max(seq, ?) where name = 'event'"

_BEGIN = "insert into sqlite_sequence (name, seq) values ('event', ?)"

_topic_of = rows.reader(Topic, what="topic {name}")
_topic_row = rows.writer(Topic)


def list_topics(connection: apsw.Connection) -> list[Topic]:
    """Return the rules set for topics, by name."""
    return [_topic_of(row) for row in connection.execute(_TOPICS)]


def last_event(connection: apsw.Connection) -> int:
    """Return the last event number used, or 0."""
    return connection.execute(_LAST_EVENT).get or 0


class Kept(NamedTuple):
    """The part of a kept event that a repeated emit needs."""

    number: int
    at: Micros
    reached: int
    state: EventState


class SqliteEvents:
    """Topics and kept events."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection
        self._topics: dict[str, Topic] | None = None

    # Topics

    def topics(self) -> Mapping[str, Topic]:
        """Return the rules of all topics. They are read once per transaction."""
        if self._topics is None:
            self._topics = {topic.name: topic for topic in list_topics(self._connection)}
        return self._topics

    def put_topics(self, topics: Sequence[Topic]) -> None:
        """Set the rules of topics. Makes the pruner examine their events again."""
        for topic in topics:
            self._connection.execute(_PUT_TOPIC, _topic_row(topic))
            is_family = topic.name.endswith(FAMILY)
            first = topic.name.removesuffix(FAMILY)
            self._connection.execute(_RECONSIDER, (first, first + _LAST_CHARACTER if is_family else first))
        self._topics = None

    # Events

    def find(self, topic: str, id: str) -> Kept | None:
        found: list[Row] = self._connection.execute(_FIND, (topic, id)).fetchall()
        return Kept(*found[0]) if found else None

    def drop(self, topic: str, number: int) -> None:
        self._connection.execute(_DROP, (number,))

    def add(self, event: Event, now: Micros, *, is_queue: bool) -> Arrival:
        # Never earlier than the latest event, even if the clocks of two processes differ: `MISSED` relies on it.
        latest = self._connection.execute(LATEST).get
        at = now if latest is None else max(now, latest)
        state = "pending" if is_queue else "open"
        number = self._connection.execute(_ADD, (event.topic, event.id, event.payload, at, state)).get
        return rules.event_arrival(number, event.topic, event.payload, at, is_exclusive=is_queue)

    def keep(self, event: KeptEvent) -> Arrival:
        state = "pending" if event.is_queued else "open"
        row = (event.number or None, event.topic, event.id, event.payload, event.at, event.reached, state)
        number = self._connection.execute(_KEEP, row).get
        return rules.event_arrival(number, event.topic, event.payload, event.at, is_exclusive=event.is_queued)

    def count(self, arrival: Arrival, reached: int) -> None:
        self._connection.execute(_COUNT, (reached, _number(arrival)))

    def hand(self, arrival: Arrival, run_id: str) -> None:
        self._connection.execute(_HAND, (run_id, _number(arrival)))

    def take(self, topic: str, number: int, run_id: str, now: Micros) -> None:
        self._connection.execute(_TAKE, (run_id, now + TAKEN_RETENTION, number))

    def give_back(self, arrival: Arrival) -> None:
        row = (_number(arrival), arrival.name, arrival.payload or "null", arrival.at)
        self._connection.execute(_GIVE_BACK, row)

    def first_missed(self, run_id: str, topic: str, oldest: Micros, after: int) -> Arrival | None:
        found = self._connection.execute(MISSED, (topic, oldest, after)).fetchall()
        return _arrival(topic, found[0], is_exclusive=False) if found else None

    def first_pending(self, topic: str) -> Arrival | None:
        found = self._connection.execute(PENDING, (topic,)).fetchall()
        return _arrival(topic, found[0], is_exclusive=True) if found else None

    # Numbers

    def raise_numbers(self, last: int) -> None:
        self._connection.execute(_RAISE, (last,))
        if not self._connection.changes() and last:
            self._connection.execute(_BEGIN, (last,))

    def next_number(self) -> int:
        number = last_event(self._connection) + 1
        self.raise_numbers(number)
        return number

    def newest(self) -> tuple[int, Micros]:
        return last_event(self._connection), self._connection.execute(LATEST).get or 0


def _number(arrival: Arrival) -> int:
    return int(arrival.ref or 0)


def _arrival(topic: str, row: Row, *, is_exclusive: bool) -> Arrival:
    number, payload, at = row
    return rules.event_arrival(number, topic, payload, at, is_exclusive=is_exclusive)
