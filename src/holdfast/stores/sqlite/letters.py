"""Dead letters: what could not be delivered is kept until a person replays or purges it."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Iterable, Sequence

import apsw

from holdfast.core.clock import Micros
from holdfast.core.model import DeadLetter, DeadReason, Event, Message, Run
from holdfast.core.ports import LetterQuery
from holdfast.core.topics import FAMILY
from holdfast.stores.sqlite import arrivals, rows
from holdfast.stores.sqlite.desk import Desk

_COLUMNS = "number, id, payload, at, reason, topic, run_id, name"

_GIVE_UP_EVENT = """
    insert into letter (id, topic, payload, at, reason)
    select id, topic, payload, ?, ?
    from event
    where number = ?
"""  # by the primary key

_DROP_EVENT = """
    delete from event
    where number = ?
"""  # by the primary key

_OPTIONS = """
    select options
    from intent
    where run_id = ?
"""  # by the primary key

_GIVE_UP_MESSAGES = """
    insert into letter (id, run_id, name, payload, at, reason)
    select ref, run_id, name, payload, ?, 'undelivered'
    from inbox
    where run_id = ?
      and kind = 'message'
    order by number
"""  # by the primary key

_ALL = f"""
    select {_COLUMNS}
    from letter
    where number > ?
    order by number
    limit ?
"""  # by the primary key

_OF_TOPIC = f"""
    select {_COLUMNS}
    from letter indexed by letter_topic
    where topic = ?
      and number > ?
    order by number
    limit ?
"""

_OF_FAMILY = f"""
    select {_COLUMNS}
    from letter
    where number > ?2
      and substr(topic, 1, length(?1)) = ?1
    order by number
    limit ?3
"""  # by the primary key

_ONE = f"""
    select {_COLUMNS}
    from letter
    where number = ?
"""  # by the primary key

_PURGE = """
    delete from letter
    where number = ?
"""  # by the primary key


def give_up_events(desk: Desk, numbers: Iterable[int], reason: DeadReason, now: Micros) -> None:
    """Events of queues that nobody took in time become dead letters."""
    for number in numbers:
        desk.connection.execute(_GIVE_UP_EVENT, (now, reason, number))
        desk.connection.execute(_DROP_EVENT, (number,))


def give_up_messages(desk: Desk, run: Run, now: Micros) -> None:
    """What a run that ends has not received: forgotten, or dead letters if it was started so."""
    options = rows.options_of((desk.one(_OPTIONS, run.id) or (None,))[0])
    if options.undelivered == "dead_letter":
        desk.connection.execute(_GIVE_UP_MESSAGES, (now, run.id))


def list_letters(connection: apsw.Connection, query: LetterQuery) -> list[DeadLetter]:
    after, limit = query.after, query.limit
    if query.topic is None:
        found = connection.execute(_ALL, (after, limit))
    elif query.topic.endswith(FAMILY):
        found = connection.execute(_OF_FAMILY, (query.topic.removesuffix(FAMILY), after, limit))
    else:
        found = connection.execute(_OF_TOPIC, (query.topic, after, limit))
    return list(map(_letter_of, found))


def replay(desk: Desk, numbers: Sequence[int]) -> int:
    """Deliver dead letters after all; how many. A message to a run that takes none stays where it is."""
    now = desk.now()
    found = [desk.one(_ONE, number) for number in dict.fromkeys(numbers)]
    return sum(_replay_one(desk, _letter_of(row), now) for row in found if row is not None)


def purge(desk: Desk, numbers: Sequence[int]) -> int:
    purged = 0
    for number in numbers:
        desk.connection.execute(_PURGE, (number,))
        purged += desk.connection.changes()
    return purged


def _replay_one(desk: Desk, letter: DeadLetter, now: Micros) -> bool:
    if letter.topic is not None:
        event = Event(id=letter.id, topic=letter.topic, payload=letter.payload)
        arrivals.publish(desk, event, now, mode="queue")  # as which it was emitted
    else:
        message = Message(id=letter.id, name=letter.name or "", payload=letter.payload, run_id=letter.run_id)
        if arrivals.send_one(desk, message, now).refused is not None:
            return False
    desk.connection.execute(_PURGE, (letter.number,))
    return True


def _letter_of(row: rows.Row) -> DeadLetter:
    number, id, payload, at, reason, topic, run_id, name = row
    return DeadLetter(
        number=number, id=id, payload=payload, at=at, reason=reason, topic=topic, run_id=run_id, name=name
    )
