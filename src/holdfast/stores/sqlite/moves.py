"""Moves: a run gets its next state, and all that an end entails happens in the same transaction."""

from __future__ import annotations

from holdfast.core import audit, kinship, rules
from holdfast.core.checkpoint import Cancel
from holdfast.core.clock import Micros
from holdfast.core.model import AuditFact, Run, WaitKind
from holdfast.stores.sqlite import inboxes, letters, limits, queues
from holdfast.stores.sqlite.desk import Desk

_OPEN_CHILDREN = """
    select id
    from run
    where parent_id = ?
      and on_close = 'cancel'
      and finished_at is null
    order by created_at, id
"""  # run_parent, in its order

_DETACH_CHILDREN = """
    update run
    set parent_location = null
    where parent_id = ?
      and finished_at is null
"""  # run_parent

_NEXT_PARKED = """
    select run_id
    from wait
    where topic = ?
      and kind = 'slot'
      and location = ?
    order by after, since, run_id
    limit 1
"""  # wait_slot

_PARKED_CHILDREN = """
    select run.id
    from run
    join wait on wait.run_id = run.id
    where run.parent_id = ?
      and run.finished_at is null
      and wait.location = ?
    order by run.created_at, run.id
"""  # run_parent, in its order; wait by the primary key

_KEEP_MESSAGES = """
    delete from inbox
    where run_id = ?
      and kind != 'message'
"""  # by the primary key

_CONTINUE = """
    update intent
    set continued = ?
    where run_id = ?
"""  # by the primary key


def move(desk: Desk, before: Run, after: Run, now: Micros, fact: AuditFact | None = None) -> None:
    """Give a run its next state, and do what that entails. `fact` is noted in place of the one that follows from it."""
    if after is before:
        return
    has_waited = not before.is_held and limits.is_waiting(desk, after.id)
    desk.put(after)
    desk.note(fact or audit.of_move(before, after, now))
    if after.state.is_end:
        _bury(desk, after, now)
    elif after.generation > before.generation:
        _begin_anew(desk, after, now)
    elif after.rollback is not None and before.rollback is None:
        _close(desk, after, now)
    is_in_race = rules.is_in_race(after, now)
    if has_waited or not is_in_race:
        limits.leave(desk, desk.run(after.id) or after, now, has_waited=has_waited)
    if is_in_race and not after.is_held:
        desk.news.ready.add(after.type)


def cancel(desk: Desk, run_id: str, request: Cancel, now: Micros) -> bool:
    """End a run as cancelled, or let it undo first what it did. False if there is nothing to change."""
    run = desk.run(run_id)
    if run is None or run.state.is_end or (run.rollback is not None and not request.force):
        return False
    if run.is_held:
        desk.news.taken.add(run_id)
    if not request.force and desk.has_undo(run_id):
        after, around = rules.cancel_by_undoing(run, request.reason, now)
        entry = rules.turn_around_entry(around, desk.last_position(run_id) + 1, now)
        desk.record(run_id, after.token, entry, now)
    else:
        after = rules.cancelled(run, request.reason, now)
    move(desk, run, after, now, audit.of_cancel(after, request, now))
    return True


def _bury(desk: Desk, run: Run, now: Micros) -> None:
    has_slot = run.group is not None and not rules.is_parked(desk.waits(run.id))
    _close(desk, run, now)
    if run.arrivals:
        letters.give_up_messages(desk, run, now)
        inboxes.clear(desk, run)
    desk.news.ended.add(run.id)
    if has_slot:
        hand_on_slot(desk, run, now)
    _tell_parent(desk, run, now)


def _tell_parent(desk: Desk, run: Run, now: Micros) -> None:
    """Have the end of a run arrive at its parent. Without a location, that knows it no more."""
    if run.parent_id is None or run.parent_location is None:
        return
    parent = desk.run(run.parent_id)
    if parent is None or parent.state.is_end:
        return
    if kinship.is_reopened(run):
        recorded = desk.entry(parent.id, run.parent_location)
        has_unread_end = any(one.kind is WaitKind.CHILD and one.name == run.id for one in desk.newer(parent, 0))
        if not kinship.waits_for(recorded, run, has_unread_end=has_unread_end):
            return
    inboxes.deliver(desk, parent, rules.child_end(run, parent.arrivals + 1, now), now)


def _close(desk: Desk, run: Run, now: Micros) -> None:
    """The code of a run is over: it waits for nothing any more, and its children follow their close policy."""
    desk.wait(run.id, ())
    if run.arrivals:
        queues.give_back(desk, run.id, (), now)
    is_first = not desk.closing
    # None of these statements looks at what is still to be flushed.
    desk.closing += [child_id for (child_id,) in desk.all(_OPEN_CHILDREN, run.id)]
    # Their own children join the list: a chain of runs may be longer than calls may be deep.
    for child_id in desk.closing if is_first else ():
        cancel(desk, child_id, rules.CLOSING, now)
    if is_first:
        desk.closing.clear()


def _begin_anew(desk: Desk, run: Run, now: Micros) -> None:
    """A run has become its next generation, which takes over the unread messages and nothing else."""
    desk.connection.execute(_CONTINUE, (run.continued, run.id))
    desk.flush()
    desk.connection.execute(_DETACH_CHILDREN, (run.id,))
    desk.forget_all()
    _close(desk, run, now)
    desk.connection.execute(_KEEP_MESSAGES, (run.id,))
    # Their siblings no longer know that they belong together, so none would hand its slot on.
    desk.flush()
    for (child_id,) in desk.all(_PARKED_CHILDREN, run.id, rules.SLOT_LOCATION):
        _give_slot(desk, child_id, now)


def hand_on_slot(desk: Desk, run: Run, now: Micros) -> None:
    """Let the next one go of those that wait until fewer of their siblings run."""
    desk.flush_waits()
    found = desk.one(_NEXT_PARKED, run.group, rules.SLOT_LOCATION)
    if found is not None:
        _give_slot(desk, found[0], now)


def _give_slot(desk: Desk, run_id: str, now: Micros) -> None:
    parked = desk.run(run_id)
    if parked is not None:
        desk.wait(parked.id, ())
        desk.put(rules.unparked(parked, now))
        desk.news.ready.add(parked.type)
