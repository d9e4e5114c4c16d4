"""Moves: a run gets its next state, and all that an end entails happens in the same transaction."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from holdfast.core import rules
from holdfast.core.checkpoint import Control
from holdfast.core.clock import Micros
from holdfast.core.errors import RunNotFound
from holdfast.core.model import Arrival, Run
from holdfast.core.states import RunState
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.desk import Desk

_OPEN_CHILDREN = """
    select id
    from run
    where parent_id = ?
      and on_close = 'cancel'
      and finished_at is null
    order by created_at, id
"""  # run_parent, in its order

_DROP_INBOX = """
    delete from inbox
    where run_id = ?
"""  # by the primary key

_ARRIVE = f"""
    insert into inbox (run_id, {rows.ARRIVAL_COLUMNS})
    values (?, {rows.placed(rows.ARRIVAL_COLUMNS)})
"""


def control(desk: Desk, run_id: str, request: Control) -> bool:
    """Carry out a person's wish. Raises before it writes."""
    if desk.run(run_id) is None:
        raise RunNotFound(f"there is no run {run_id}")
    return cancel(desk, run_id, request.reason, desk.now())


def move(desk: Desk, before: Run, after: Run, now: Micros) -> None:
    """Give a run its next state."""
    if after is before:
        return
    desk.put(after)
    desk.note(rules.audit_of_move(before, after, now))
    if after.state.is_end:
        _bury(desk, after, now)
    elif not after.is_held and after.ready_at is not None and after.ready_at <= now:
        desk.news.ready.add(after.type)


def cancel(desk: Desk, run_id: str, reason: str, now: Micros) -> bool:
    """End a run as cancelled. False if there is none, or it has ended."""
    run = desk.run(run_id)
    if run is None or run.state.is_end:
        return False
    if run.is_held:
        desk.news.taken.add(run_id)
    move(desk, run, rules.cancelled(run, reason, now), now)
    return True


def deliver(desk: Desk, run: Run, arrival: Arrival, now: Micros) -> None:
    """Put what arrived into a run's inbox, and wake the run if it sleeps waiting for it."""
    if run.state.is_end:
        return
    desk.connection.execute(_ARRIVE, rows.arrival_row(run.id, arrival))
    is_asleep = run.state is RunState.SUSPENDED and not run.is_held  # of any other the waits need not be read
    is_awaited = is_asleep and any(rules.accepts(wait, arrival) for wait in desk.waits(run.id))
    after = rules.delivered(run, now, is_awaited=is_awaited)
    desk.put(after)
    if after.is_held:
        desk.news.arrived.add(run.id)
    elif after.ready_at != run.ready_at:
        desk.note_often(rules.audit_of_wake(after, arrival, now), after.arrivals)
        desk.news.ready.add(after.type)


def _bury(desk: Desk, run: Run, now: Micros) -> None:
    desk.wait(run.id, ())
    if run.arrivals:
        desk.connection.execute(_DROP_INBOX, (run.id,))
    desk.news.ended.add(run.id)
    # Read before the first of them is cancelled; none of these statements looks at what is still to be flushed.
    for (child_id,) in desk.all(_OPEN_CHILDREN, run.id):
        cancel(desk, child_id, "its parent ended", now)
    if run.parent_id is not None and (parent := desk.run(run.parent_id)) is not None:
        deliver(desk, parent, rules.child_end(run, parent.arrivals + 1, now), now)
