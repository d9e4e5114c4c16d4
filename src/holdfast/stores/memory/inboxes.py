"""Inboxes: what reaches a run waits there, and wakes the run if it sleeps waiting for it."""

from __future__ import annotations

from holdfast.core import audit, limits, rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival
from holdfast.stores.memory.state import Record, State


def deliver(state: State, record: Record, arrival: Arrival, now: Micros) -> None:
    """Put what arrived into a run's inbox, and wake the run if it sleeps waiting for it."""
    before = record.run
    if before.state.is_end:
        return
    record.inbox[arrival.number] = arrival
    is_awaited = False
    if rules.is_asleep(before, now):
        waits, is_over = rules.counted_down(record.waits, arrival)
        record.waits = tuple(waits)
        # One that is awake and waits for a slot of its type finds it when it has got one.
        is_awaited = is_over and limits.parked_at(waits) is None
    record.run = rules.delivered(before, now, is_awaited=is_awaited)
    if record.run.is_held:
        state.news.arrived.add(record.run.id)
    elif record.run.ready_at != before.ready_at:
        state.note(record, audit.of_wake(record.run, arrival, now))
        state.news.ready.add(record.run.type)
