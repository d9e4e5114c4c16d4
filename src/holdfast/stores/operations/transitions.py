"""Transitions: a run gets its next state, and all that an end entails happens at once."""

from __future__ import annotations

from holdfast.core import audit, kinship, rules
from holdfast.core import limits as limit_rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancellation
from holdfast.core.model import AuditFact, Run
from holdfast.stores.operations import dead_letters, inboxes, limits, queues
from holdfast.stores.operations.unit_of_work import UnitOfWork


def move(unit: UnitOfWork, before: Run, after: Run, now: Micros, fact: AuditFact | None = None) -> None:
    """Give a run its next state, and do what that entails. `fact` is noted in place of the one that follows from it."""
    if after is before:
        return
    has_waited = not before.is_held and limit_rules.parked_at(unit.waits.of(after.id)) is not None
    unit.runs.put(after)
    unit.audit.note(fact or audit.of_move(before, after, now))
    if after.state.is_end:
        _bury(unit, after, now)
    elif after.generation > before.generation:
        _begin_anew(unit, after, now)
    elif after.rollback is not None and before.rollback is None:
        _close(unit, after, now)
    is_in_race = rules.is_in_race(after, now)
    if has_waited or not is_in_race:
        limits.leave(unit, unit.runs.get(after.id) or after, now, has_waited=has_waited)
    if is_in_race and not after.is_held:
        unit.news.ready.add(after.type)


def cancel(unit: UnitOfWork, run_id: str, why: Cancellation, now: Micros) -> bool:
    """End a run as cancelled, or let it undo first what it did. False if there is nothing to change."""
    run = unit.runs.get(run_id)
    if run is None or run.state.is_end or (run.rollback is not None and not why.force):
        return False
    if run.is_held:
        unit.news.taken.add(run_id)
    if not why.force and unit.histories.has_undo(run_id):
        after, start = rules.cancel_by_undoing(run, why.reason, now)
        entry = rules.rollback_entry(start, unit.histories.last_position(run_id) + 1, now)
        unit.histories.record(run_id, after.token, entry)
    else:
        after = rules.cancelled(run, why.reason, now)
    move(unit, run, after, now, audit.of_cancel(after, why, now))
    return True


def _bury(unit: UnitOfWork, run: Run, now: Micros) -> None:
    had_slot = run.group is not None and not rules.is_parked(unit.waits.of(run.id))
    _close(unit, run, now)
    if run.arrivals:
        dead_letters.give_up_messages(unit, run, now)
        unit.inboxes.clear(run)
    unit.news.ended.add(run.id)
    if had_slot:
        hand_on_slot(unit, run, now)
    _tell_parent(unit, run, now)


def _tell_parent(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Have the end of a run arrive at its parent. Without a location, that knows it no more."""
    if run.parent_id is None or run.parent_location is None:
        return
    parent = unit.runs.get(run.parent_id)
    if parent is None or parent.state.is_end:
        return
    if kinship.is_reopened(run):
        recorded = unit.histories.entry(parent.id, run.parent_location)
        has_unread_end = unit.inboxes.has_end_of(parent, run.id)
        if not kinship.waits_for(recorded, run, has_unread_end=has_unread_end):
            return
    inboxes.deliver(unit, parent, rules.child_end(run, parent.arrivals + 1, now), now)


def _close(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """The code of a run is over: it waits for nothing any more, and its children follow their close policy."""
    unit.waits.put(run.id, ())
    if run.arrivals:
        queues.give_back(unit, run, (), now)
    is_first = not unit.closing
    unit.closing += unit.families.to_cancel(run.id)
    # Their own children join the list: a chain of runs may be longer than calls may be deep.
    for child_id in unit.closing if is_first else ():
        cancel(unit, child_id, rules.CLOSING, now)
    if is_first:
        unit.closing.clear()


def _begin_anew(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """A run has become its next generation, which takes over the unread messages and nothing else."""
    unit.families.detach(run.id)
    _close(unit, run, now)
    unit.inboxes.keep_messages(run)
    # Their siblings no longer know that they belong together, so none would hand its slot on.
    for child_id in unit.families.parked(run.id):
        _give_slot(unit, child_id, now)


def hand_on_slot(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Let the next one go of those that wait until fewer of their siblings run."""
    if run.group is not None and (run_id := unit.waits.first(run.group, rules.SLOT_LOCATION)) is not None:
        _give_slot(unit, run_id, now)


def _give_slot(unit: UnitOfWork, run_id: str, now: Micros) -> None:
    parked = unit.runs.get(run_id)
    if parked is not None:
        unit.waits.put(parked.id, ())
        unit.runs.put(rules.unparked(parked, now))
        unit.news.ready.add(parked.type)
