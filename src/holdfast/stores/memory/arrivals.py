"""Arrivals: messages and events on their way into the inboxes of runs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import Event, Message, TopicMode, Wait, WaitKind
from holdfast.core.ports import Sent
from holdfast.core.topics import topic_of
from holdfast.stores.memory import inboxes, queues
from holdfast.stores.memory.state import Published, Record, State


def send(state: State, messages: Sequence[Message], now: Micros) -> list[Sent]:
    return [send_one(state, message, now) for message in messages]


def send_one(state: State, message: Message, now: Micros) -> Sent:
    """Deliver a message once, however often it is sent."""
    run_id = message.run_id if message.key is None else state.keys.get(message.key)
    record = state.records.get(run_id) if run_id is not None else None
    if record is None or record.run.deleted_at is not None:
        return Sent(run_id=run_id, refused="unknown")
    if record.knows_message(message.id, now):
        return Sent(run_id=run_id)  # also if it has ended since: the answer got lost
    if record.run.state.is_end:
        return Sent(run_id=run_id, refused="finished")
    inboxes.deliver(state, record, rules.message_arrival(message, record.run, now), now)
    return Sent(run_id=run_id)


def consume(state: State, record: Record, numbers: Sequence[int], now: Micros) -> None:
    """Take arrivals out of an inbox; the id of a message is remembered for a while."""
    for number in numbers:
        arrival = record.inbox.pop(number, None)
        if arrival is None:
            continue
        if arrival.kind is WaitKind.MESSAGE and arrival.ref is not None:
            record.receipts[arrival.ref] = now
        elif arrival.is_exclusive:
            queues.take(state, record.run.id, arrival, now)


def emit(state: State, events: Sequence[Event], now: Micros) -> list[int]:
    return [publish(state, event, now) for event in events]


def publish(state: State, event: Event, now: Micros, mode: TopicMode | None = None) -> int:
    """Keep an event and hand it to every run that waits for it now, or to one; the answer is their number."""
    topic = topic_of(event.topic, state.topics)
    kept = state.events[event.topic]
    for published in list(kept):
        if published.event.id == event.id:
            if published.state != "open" or published.at > now - topic.retention:
                return published.reached
            kept.remove(published)
    published = Published(state.next_event(), event, now)
    kept.append(published)
    if (mode or topic.mode) == "queue":
        published.state = "pending"
        published.reached = int(queues.hand_on(state, published, now))
        return published.reached
    for record in state.records.values():
        if any(rules.accepts(wait, published.arrival()) and not record.satisfies(wait) for wait in record.waits):
            inboxes.deliver(state, record, published.arrival(record.run), now)
            published.reached += 1
    return published.reached


def collect_missed(state: State, record: Record, now: Micros) -> None:
    """Hand a run, on each topic it has begun to wait for, the first event that it missed or that nobody took."""
    for wait in record.waits:
        if wait.kind is not WaitKind.EVENT or record.satisfies(wait):
            continue
        published = _first_missed(state, record, wait, now)
        if published is None:
            continue
        if published.state == "pending":
            queues.hand(state, published, record, now)
        else:
            inboxes.deliver(state, record, published.arrival(record.run), now)


def _first_missed(state: State, record: Record, wait: Wait, now: Micros) -> Published | None:
    (name,) = wait.names
    oldest = max(record.run.created_at, now - topic_of(name, state.topics).retention + 1)
    for published in state.events[name]:
        if published.state == "pending":
            return published
        if published.state == "open" and published.at >= oldest and published.number > wait.after:
            return published
    return None
