"""Queues: an event of a queue goes to one run that waits, and back if that run does not take it after all."""

from __future__ import annotations

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Event, WaitKind
from holdfast.core.topics import may_be_handed
from holdfast.stores.memory import inboxes
from holdfast.stores.memory.state import Published, Record, State


def hand_on(state: State, published: Published, now: Micros) -> bool:
    """Give an event to the run that has waited longest for one; without any it stays pending."""
    arrival = published.arrival()
    waiting = [
        (wait.since, record.run.id)
        for record in state.records.values()
        if may_be_handed(record.run)
        for wait in record.waits
        if rules.accepts(wait, arrival) and not record.satisfies(wait)
    ]
    if not waiting:
        state.know_all_waiting(arrival.name)
        published.state, published.holder = "pending", None
        return False
    _, run_id = min(waiting)
    hand(state, published, state.records[run_id], now)
    return True


def hand(state: State, published: Published, record: Record, now: Micros) -> None:
    """Give an event to a run, and to no other as long as that wants it."""
    published.state, published.holder = "handed", record.run.id
    inboxes.deliver(state, record, published.arrival(record.run), now)


def take(state: State, run_id: str, arrival: Arrival, now: Micros) -> None:
    """A run has taken an event for good."""
    published = _published(state, arrival)
    if published is not None:
        published.state, published.holder, published.taken_at = "taken", run_id, now


def give_back(state: State, record: Record, now: Micros) -> None:
    """Hand on each event of a queue that a run has in its inbox and does not wait for any more."""
    for arrival in list(record.inbox.values()):
        if not arrival.is_exclusive or any(rules.accepts(wait, arrival) for wait in record.waits):
            continue
        del record.inbox[arrival.number]
        hand_on(state, _published(state, arrival) or _restored(state, arrival), now)


def _published(state: State, arrival: Arrival) -> Published | None:
    known = (one for one in state.events[arrival.name] if one.number == int(arrival.ref or 0))
    return next(known, None)


def _restored(state: State, arrival: Arrival) -> Published:
    """An event that was forgotten since it was taken, and is there again because the run was rewound."""
    assert arrival.kind is WaitKind.EVENT
    number = int(arrival.ref or 0)
    event = Event(id=f"restored:{number}", topic=arrival.name, payload=arrival.payload or "null")
    published = Published(number, event, arrival.at, state="pending")
    kept = state.events[arrival.name]
    kept.append(published)
    kept.sort(key=lambda one: one.number)
    return published
