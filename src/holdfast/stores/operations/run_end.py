"""The end of a run: its consequences for the run's waits, inbox, children, slot and parent, in one transaction."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import kinship, rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancellation
from holdfast.core.model import Run
from holdfast.stores.operations import dead_letters, inboxes, queues
from holdfast.stores.operations.unit_of_work import UnitOfWork

CancelRun = Callable[[UnitOfWork, str, Cancellation, Micros], bool]
"""The type of `transitions.cancel`. It is passed in because `transitions` imports this module."""


def end(unit: UnitOfWork, run: Run, now: Micros, cancel: CancelRun) -> None:
    """Clear the waits and inbox of an ended run, close its children by their policy, and notify its parent."""
    had_slot = run.group is not None and not rules.is_parked(unit.waits.of(run.id))
    close(unit, run, now, cancel)
    if run.arrivals:
        dead_letters.give_up_messages(unit, run, now)
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
    if kinship.is_reopened(run):
        recorded = unit.histories.entry(parent.id, run.parent_location)
        has_unread_end = unit.inboxes.has_end_of(parent, run.id)
        if not kinship.waits_for(recorded, run, has_unread_end=has_unread_end):
            return
    inboxes.deliver(unit, parent, rules.child_end(run, parent.arrivals + 1, now), now)


def close(unit: UnitOfWork, run: Run, now: Micros, cancel: CancelRun) -> None:
    """Clear the waits of a run whose code is over, and close its children by their policy."""
    unit.waits.put(run.id, ())
    if run.arrivals:
        queues.give_back(unit, run, (), now)
    is_first = not unit.closing
    unit.closing += unit.families.to_cancel(run.id)
    # A cancelled child appends its own children to this list while the loop runs. This avoids recursion, because a
    # chain of runs may be longer than Python's recursion limit.
    for child_id in unit.closing if is_first else ():
        cancel(unit, child_id, rules.CLOSING, now)
    if is_first:
        unit.closing.clear()


def begin_next_generation(unit: UnitOfWork, run: Run, now: Micros, cancel: CancelRun) -> None:
    """Close the old generation of a run that continues as new. Only the unread messages pass to the next one."""
    unit.families.detach(run.id)
    close(unit, run, now, cancel)
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
