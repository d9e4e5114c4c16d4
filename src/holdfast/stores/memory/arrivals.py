"""Arrivals: messages and events on their way into the inboxes of runs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import EVENT_RETENTION, RECEIPT_RETENTION, Event, Message, WaitKind
from holdfast.core.ports import Sent
from holdfast.stores.memory import moves
from holdfast.stores.memory.state import Published, Record, State


def send(state: State, messages: Sequence[Message], now: Micros) -> list[Sent]:
    return [send_one(state, message, now) for message in messages]


def send_one(state: State, message: Message, now: Micros) -> Sent:
    """Deliver a message once, however often it is sent."""
    run_id = message.run_id if message.key is None else state.keys.get(message.key)
    record = state.records.get(run_id) if run_id is not None else None
    if record is None:
        return Sent(run_id=run_id, refused="unknown")
    if record.run.state.is_end:
        return Sent(run_id=run_id, refused="finished")
    if not _is_known(record, message.id, now):
        moves.deliver(state, record, rules.message_arrival(message, record.run, now), now)
    return Sent(run_id=run_id)


def consume(record: Record, numbers: Sequence[int], now: Micros) -> None:
    """Take arrivals out of an inbox; the id of a message is remembered for a while."""
    for number in numbers:
        arrival = record.inbox.pop(number, None)
        if arrival is not None and arrival.kind is WaitKind.MESSAGE and arrival.ref is not None:
            record.receipts[arrival.ref] = now


def emit(state: State, events: Sequence[Event], now: Micros) -> list[int]:
    return [publish(state, event, now) for event in events]


def publish(state: State, event: Event, now: Micros) -> int:
    """Keep an event and hand it to every run that waits for it now; the answer is their number."""
    kept = [one for one in state.events[event.topic] if one.at > now - EVENT_RETENTION]
    state.events[event.topic] = kept
    for published in kept:
        if published.event.id == event.id:
            return published.reached
    state.event_count += 1
    published = Published(state.event_count, event, now)
    kept.append(published)
    for record in state.records.values():
        if any(rules.accepts(wait, published.arrival()) and not record.satisfies(wait) for wait in record.waits):
            moves.deliver(state, record, published.arrival(record.run), now)
            published.reached += 1
    return published.reached


def collect_missed(state: State, record: Record, now: Micros) -> None:
    """Hand a run the first event it missed on each topic it has begun to wait for."""
    for wait in record.waits:
        if wait.kind is not WaitKind.EVENT or record.satisfies(wait):
            continue
        for published in state.events[wait.names[0]]:
            is_kept = record.run.created_at <= published.at and published.at > now - EVENT_RETENTION
            if is_kept and published.number > wait.after:
                moves.deliver(state, record, published.arrival(record.run), now)
                break


def _is_known(record: Record, message_id: str, now: Micros) -> bool:
    record.receipts = {id: at for id, at in record.receipts.items() if at > now - RECEIPT_RETENTION}
    unread = {arrival.ref for arrival in record.inbox.values() if arrival.kind is WaitKind.MESSAGE}
    return message_id in record.receipts or message_id in unread
