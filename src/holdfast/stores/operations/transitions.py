"""Transitions: give a run its next state, with all consequences for its waits, inbox, children, slot and parent."""

from __future__ import annotations

from holdfast.core import audit, rules
from holdfast.core import limits as limit_rules
from holdfast.core.checkpoint import UndoneState
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancellation, Recover
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.core.model import AuditFact, Run
from holdfast.core.states import RunState
from holdfast.stores.operations import arrivals, limits
from holdfast.stores.operations.unit_of_work import UnitOfWork


def move(unit: UnitOfWork, before: Run, after: Run, now: Micros, fact: AuditFact | None = None) -> None:
    """Give a run its next state, with all consequences. `fact` replaces the audit fact that follows from the change."""
    if after is before:
        return
    has_waited = not before.is_held and limit_rules.parked_at(unit.waits.of(after.id)) is not None
    unit.runs.put(after)
    unit.audit.note(fact or audit.of_move(before, after, now))
    if after.state.is_end:
        end(unit, after, now)
    elif after.generation > before.generation:
        begin_next_generation(unit, after, now)
    elif after.rollback is not None and before.rollback is None:
        close(unit, after, now)
    is_in_race = rules.is_in_race(after, now)
    if has_waited or not is_in_race:
        limits.leave(unit, unit.runs.get(after.id) or after, now, has_waited=has_waited)
    if is_in_race and not after.is_held:
        unit.news.ready.add(after.type)


def cancel(unit: UnitOfWork, run_id: str, why: Cancellation, now: Micros) -> bool:
    """End a run as cancelled, or start its rollback if it has steps to undo. Return False if nothing changed."""
    run = unit.runs.get(run_id)
    if run is None or run.state.is_end or (run.rollback is not None and not why.force):
        return False
    if run.is_held:
        unit.news.taken.add(run_id)
    after = None if why.force else _undone_first(unit, run, RunState.CANCELLED, rules.cancellation(why.reason), now)
    after = after or rules.cancelled(run, why.reason, now)
    move(unit, run, after, now, audit.of_cancel(after, why, now))
    return True


def give_up(unit: UnitOfWork, run: Run, request: Recover, now: Micros) -> bool:
    """Let the error that blocked a run fail it, after a rollback if it has steps to undo. Return False if it is not."""
    if run.state is not RunState.BLOCKED or run.error is None:
        return False
    if run.rollback is not None:
        raise InvalidRequest(
            f"run {run.id} is blocked while it undoes its steps, so its error has failed it already; recover it "
            "without fail when the undo works again, or cancel it with force, which leaves the rest as it is"
        )
    after = _undone_first(unit, run, RunState.FAILED, run.error, now) or rules.given_up(run, now)
    move(unit, run, after, now, audit.of_control(run.id, after.state.value, request, now, error=str(run.error)[:500]))
    return True


def _undone_first(unit: UnitOfWork, run: Run, end: UndoneState, error: ErrorRecord, now: Micros) -> Run | None:
    """Record the start of the rollback that precedes the end of a run. Return None if it has nothing to undo."""
    if not unit.histories.has_undo(run.id):
        return None
    after, start = rules.undone_first(run, end, error, now)
    entry = rules.rollback_entry(start, unit.histories.last_position(run.id) + 1, now)
    unit.histories.record(run.id, after.token, entry)
    return after


def end(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Clear the waits and inbox of an ended run, close its children by their policy, and notify its parent."""
    had_slot = run.group is not None and not rules.is_parked(unit.waits.of(run.id))
    close(unit, run, now)
    if run.arrivals:
        arrivals.give_up_messages(unit, run, now)
        unit.inboxes.clear(run)
    unit.news.ended.add(run.id)
    if had_slot:
        pass_slot_on(unit, run, now)
    _notify_parent(unit, run, now)


def _notify_parent(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Deliver the end of a run to its parent, unless the parent no longer has the run on record."""
    if run.parent_id is None or run.parent_location is None:
        return
    parent = unit.runs.get(run.parent_id)
    if parent is None or parent.state.is_end:
        return
    if rules.is_reopened(run):
        recorded = unit.histories.entry(parent.id, run.parent_location)
        has_unread_end = unit.inboxes.has_end_of(parent, run.id)
        if not rules.waits_for(recorded, run, has_unread_end=has_unread_end):
            return
    arrivals.deliver(unit, parent, rules.child_end(run, parent.arrivals + 1, now), now)


def close(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Clear the waits of a run whose code is over, and close its children by their policy."""
    unit.waits.put(run.id, ())
    if run.arrivals:
        arrivals.give_back(unit, run, (), now)
    is_first = not unit.closing
    unit.closing += unit.families.to_cancel(run.id)
    # A cancelled child appends its own children to this list while the loop runs. This avoids recursion, because a
    # chain of runs may be longer than Python's recursion limit.
    for child_id in unit.closing if is_first else ():
        cancel(unit, child_id, rules.CLOSING, now)
    if is_first:
        unit.closing.clear()


def begin_next_generation(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Close the old generation of a run that continues as new. Only the unread messages pass to the next one."""
    unit.families.detach(run.id)
    close(unit, run, now)
    unit.inboxes.keep_messages(run)
    # The detached children no longer form a group, so none of them would pass its slot on to a parked one.
    for child_id in unit.families.parked(run.id):
        _give_slot(unit, child_id, now)


def pass_slot_on(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Give the slot of a run to the next sibling that waits because of the limit of a `map`."""
    if run.group is not None and (run_id := unit.waits.first(run.group, rules.SLOT_LOCATION)) is not None:
        _give_slot(unit, run_id, now)


def _give_slot(unit: UnitOfWork, run_id: str, now: Micros) -> None:
    parked = unit.runs.get(run_id)
    if parked is not None:
        unit.waits.put(parked.id, ())
        unit.runs.put(rules.unparked(parked, now))
        unit.news.ready.add(parked.type)
