"""Arrivals: messages and events on their way into the inboxes of runs."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import RECEIPT_RETENTION, Arrival, Event, Message, Run, TopicMode, Wait, WaitKind
from holdfast.core.ports import Sent
from holdfast.core.topics import topic_of
from holdfast.stores.sqlite import inboxes, queues, rows, topics
from holdfast.stores.sqlite.desk import Desk

_log = logging.getLogger("holdfast.store")

_BY_KEY = """
    select id
    from run
    where key = ?
"""  # run_key

_IS_KNOWN = """
    select 1
    where exists (select 1 from receipt where run_id = ?1 and message_id = ?2 and at > ?3)
       or exists (select 1 from inbox where run_id = ?1 and ref = ?2 and kind = 'message')
"""  # the primary key of receipt, inbox_message

_CONSUME = """
    delete from inbox
    where run_id = ?
      and number = ?
    returning kind, ref, is_exclusive
"""  # by the primary key

_KEEP_RECEIPT = """
    insert into receipt (run_id, message_id, at)
    values (?, ?, ?)
    on conflict (run_id, message_id) do update
    set at = excluded.at
"""

_PUBLISHED = """
    select number, at, reached, state
    from event
    where topic = ?
      and id = ?
"""  # event_once

_DROP_EVENT = """
    delete from event
    where number = ?
"""  # by the primary key

_LATEST = """
    select at
    from event
    where number = (select max(number) from event)
"""  # by the primary key, twice

_PUBLISH = """
    insert into event (topic, id, payload, at, reached, state)
    values (?, ?, ?, ?, 0, ?)
    returning number
"""

_REACHED = """
    update event
    set reached = ?
    where number = ?
"""  # by the primary key

_WAITERS = f"""
    select run_id, {rows.WAIT_COLUMNS}
    from wait
    where topic = ?
    order by run_id, place
"""  # wait_topic

_HAS_MORE_WAITERS = """
    select 1
    from wait
    where topic = ?
    limit 1 offset ?
"""  # wait_topic

# Later in number is never earlier in time. So the search begins at the instant of the last event the run has had,
# not at the first one there is.
_MISSED = """
    select number, payload, at
    from event
    where topic = ?1
      and at >= max(?2, ifnull((select at from event where number = ?3), ?2))
      and number > ?3
      and state = 'open'
    order by at, number
    limit 1
"""  # event_topic

_PENDING = """
    select number, payload, at
    from event indexed by event_pending
    where topic = ?
      and state = 'pending'
    order by number
    limit 1
"""


def send(desk: Desk, messages: Sequence[Message]) -> list[Sent]:
    now = desk.now()
    return [send_one(desk, message, now) for message in messages]


def send_one(desk: Desk, message: Message, now: Micros) -> Sent:
    """Deliver a message once, however often it is sent."""
    run_id = message.run_id if message.key is None else _id_of_key(desk, message.key)
    run = desk.run(run_id) if run_id is not None else None
    if run is None or run.deleted_at is not None:
        return Sent(run_id=run_id, refused="unknown")
    if run.arrivals and _is_known(desk, run.id, message.id, now):
        return Sent(run_id=run_id)  # also if it has ended since: the answer got lost
    if run.state.is_end:
        return Sent(run_id=run_id, refused="finished")
    inboxes.deliver(desk, run, rules.message_arrival(message, run, now), now)
    return Sent(run_id=run_id)


def consume(desk: Desk, run_id: str, numbers: Sequence[int], now: Micros) -> None:
    """Take arrivals out of an inbox; the id of a message is remembered for a while."""
    for number in numbers:
        taken = desk.one(_CONSUME, run_id, number)
        if taken is None:
            continue
        kind, ref, is_exclusive = taken
        if kind == WaitKind.MESSAGE and ref is not None:
            desk.connection.execute(_KEEP_RECEIPT, (run_id, ref, now))
        elif is_exclusive:
            queues.take(desk, run_id, ref, now)


def emit(desk: Desk, events: Sequence[Event]) -> list[int]:
    now = desk.now()
    return [publish(desk, event, now) for event in events]


def reaches_few(desk: Desk, events: Sequence[Event], limit: int) -> bool:
    """Whether no more waits are looked at for any of these events."""
    return not any(desk.all(_HAS_MORE_WAITERS, event.topic, limit) for event in events)


def publish(desk: Desk, event: Event, now: Micros, mode: TopicMode | None = None) -> int:
    """Keep an event and hand it to every run that waits for it now, or to one; the answer is their number."""
    topic = topic_of(event.topic, topics.known(desk))
    known = desk.one(_PUBLISHED, event.topic, event.id)
    if known is not None:
        number, at, reached, state = known
        if state != "open" or at > now - topic.retention:
            return int(reached)
        desk.connection.execute(_DROP_EVENT, (number,))
    # Whatever the clocks of two processes say: `_MISSED` relies on the order of events being that of their times.
    latest = desk.one(_LATEST)
    at = now if latest is None else max(now, latest[0])
    is_queue = (mode or topic.mode) == "queue"
    state = "pending" if is_queue else "open"
    number = desk.connection.execute(_PUBLISH, (event.topic, event.id, event.payload, at, state)).get
    arrival = rules.event_arrival(number, event.topic, event.payload, at, is_exclusive=is_queue)
    reached = int(queues.hand_on(desk, arrival, now)) if is_queue else _spread(desk, arrival, now)
    if reached:
        desk.connection.execute(_REACHED, (reached, number))
    return reached


def _spread(desk: Desk, arrival: Arrival, now: Micros) -> int:
    """Hand an event to every run that waits for it; how many."""
    reached = 0
    for run in _waiters(desk, arrival):
        inboxes.deliver(desk, run, replace(arrival, number=run.arrivals + 1), now)
        reached += 1
    return reached


def collect_missed(desk: Desk, run: Run, waits: Sequence[Wait], now: Micros) -> None:
    """Hand a run, on each topic it has begun to wait for, the first event that it missed or that nobody took."""
    for wait in waits:
        if wait.kind is not WaitKind.EVENT:
            continue
        run = desk.run(run.id) or run
        if inboxes.is_satisfied(desk, run, wait):
            continue
        (name,) = wait.names
        oldest = max(run.created_at, now - topic_of(name, topics.known(desk)).retention + 1)
        missed = desk.one(_MISSED, name, oldest, wait.after)
        pending = desk.one(_PENDING, name)
        if pending is not None and (missed is None or pending[0] < missed[0]):
            number, payload, at = pending
            queues.hand(desk, run, rules.event_arrival(number, name, payload, at, is_exclusive=True), now)
        elif missed is not None:
            number, payload, at = missed
            inboxes.deliver(desk, run, rules.event_arrival(number, name, payload, at, run), now)


def _id_of_key(desk: Desk, key: str) -> str | None:
    found = desk.one(_BY_KEY, key)
    return found[0] if found else None


def _is_known(desk: Desk, run_id: str, message_id: str, now: Micros) -> bool:
    return desk.one(_IS_KNOWN, run_id, message_id, now - RECEIPT_RETENTION) is not None


def _waiters(desk: Desk, arrival: Arrival) -> Iterator[Run]:
    """The runs that wait for an event and have none yet, each once."""
    desk.flush_waits()
    waiting = desk.all(_WAITERS, arrival.name)
    for run_id, of_run in groupby(waiting, key=itemgetter(0)):
        try:
            run = _waiter(desk, run_id, [rows.wait_of(row[1:]) for row in of_run], arrival)
        except rows.OddRow as error:
            _log.warning("event of topic %s passes over run %s: %s", arrival.name, run_id, error)
            continue
        if run is not None:
            yield run


def _waiter(desk: Desk, run_id: str, waits: Sequence[Wait], arrival: Arrival) -> Run | None:
    """A run, if it waits for an event and has none yet."""
    accepting = [wait for wait in waits if rules.accepts(wait, arrival)]
    run = desk.run(run_id) if accepting else None
    if run is None or all(inboxes.is_satisfied(desk, run, wait) for wait in accepting):
        return None
    return run
