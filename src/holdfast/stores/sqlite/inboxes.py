"""Inboxes: what reaches a run waits there, and wakes the run if it sleeps waiting for it."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from holdfast.core import audit, limits, rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Run, Wait
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.desk import Desk

ARRIVE = f"""
    insert into inbox (run_id, {rows.ARRIVAL_COLUMNS})
    values (?, {rows.placed(rows.ARRIVAL_COLUMNS)})
"""

_CLEAR = """
    delete from inbox
    where run_id = ?
"""  # by the primary key

_UNREAD_EVENTS = f"""
    select {rows.ARRIVAL_COLUMNS}
    from inbox indexed by inbox_event
    where run_id = ?
      and name = ?
      and kind = 'event'
"""


def clear(desk: Desk, run: Run) -> None:
    """Take everything out of a run's inbox."""
    if run.arrivals:
        desk.connection.execute(_CLEAR, (run.id,))


def deliver(desk: Desk, run: Run, arrival: Arrival, now: Micros) -> None:
    """Put what arrived into a run's inbox, and wake the run if it sleeps waiting for it."""
    if run.state.is_end:
        return
    desk.connection.execute(ARRIVE, rows.arrival_row(run.id, arrival))
    is_awaited = False
    if rules.is_asleep(run, now):
        before = desk.waits(run.id)
        waits, is_over = rules.counted_down(before, arrival)
        # One that is awake and waits for a slot of its type finds it when it has got one.
        is_awaited = is_over and limits.parked_at(waits) is None
        if waits is not before:
            desk.wait(run.id, waits)
    after = rules.delivered(run, now, is_awaited=is_awaited)
    desk.put(after)
    if after.is_held:
        desk.news.arrived.add(run.id)
    elif after.ready_at != run.ready_at:
        desk.note_often(audit.of_wake(after, arrival, now), after.arrivals)
        desk.news.ready.add(after.type)


def is_satisfied(desk: Desk, run: Run, wait: Wait) -> bool:
    """Whether what an event wait waits for is in the inbox already."""
    if not run.arrivals:
        return False
    unread = map(rows.arrival_of, desk.all(_UNREAD_EVENTS, run.id, wait.names[0]))
    return any(rules.accepts(wait, arrival) for arrival in unread)
