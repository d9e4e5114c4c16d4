"""Inboxes: an arrival is kept in the inbox of its run, and wakes the run if it is suspended on a matching wait."""

from __future__ import annotations

from holdfast.core import audit, limits, rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Run, Wait
from holdfast.stores.operations.unit_of_work import UnitOfWork


def deliver(unit: UnitOfWork, run: Run, arrival: Arrival, now: Micros, *, by: str = "") -> None:
    """Put an arrival into a run's inbox, and wake the run if it is suspended on a matching wait. `by` is the sender."""
    if run.state.is_end:
        return
    unit.inboxes.add(run.id, arrival)
    is_awaited = False
    if rules.is_asleep(run, now):
        before = unit.waits.of(run.id)
        waits, is_over = rules.counted_down(before, arrival)
        # A run that a limit has parked was woken before. It finds the arrival when it gets its slot.
        is_awaited = is_over and limits.parked_at(waits) is None
        if waits is not before:
            unit.waits.put(run.id, waits)
    after = rules.delivered(run, now, is_awaited=is_awaited)
    unit.runs.put(after)
    if after.is_held:
        unit.news.arrived.add(run.id)
    elif after.ready_at != run.ready_at:
        unit.audit.note_often(audit.of_wake(after, arrival, by, now), after.arrivals)
        unit.news.ready.add(after.type)


def is_satisfied(unit: UnitOfWork, run: Run, wait: Wait) -> bool:
    """Return True if an event for this wait is already in the inbox. A wait takes one event; the next wait the next."""
    if not run.arrivals:
        return False
    return any(rules.accepts(wait, arrival) for arrival in unit.inboxes.events(run, wait.names[0]))
