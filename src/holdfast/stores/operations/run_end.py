"""The end of a run: what happens to its waits, its inbox, its children, its slot and its parent, all at once."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import kinship, rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancellation
from holdfast.core.model import Run
from holdfast.stores.operations import dead_letters, inboxes, queues
from holdfast.stores.operations.unit_of_work import UnitOfWork

CancelRun = Callable[[UnitOfWork, str, Cancellation, Micros], bool]
"""`transitions.cancel`: a child that is cancelled ends, too, and so this module is called again."""


def end(unit: UnitOfWork, run: Run, now: Micros, cancel: CancelRun) -> None:
    """A run has ended: its waits and inbox go, its children follow their close policy, and its parent is told."""
    had_slot = run.group is not None and not rules.is_parked(unit.waits.of(run.id))
    close(unit, run, now, cancel)
    if run.arrivals:
        dead_letters.give_up_messages(unit, run, now)
        unit.inboxes.clear(run)
    unit.news.ended.add(run.id)
    if had_slot:
        hand_on_slot(unit, run, now)
    _tell_parent(unit, run, now)


def _tell_parent(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Deliver the end of a run to its parent. Without a location, the parent no longer knows the run."""
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
    """The code of a run is over: the run waits for nothing, and its children follow their close policy."""
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


def begin_next_generation(unit: UnitOfWork, run: Run, now: Micros, cancel: CancelRun) -> None:
    """A run has become its next generation, which takes over the unread messages and nothing else."""
    unit.families.detach(run.id)
    close(unit, run, now, cancel)
    unit.inboxes.keep_messages(run)
    # Their siblings no longer know that they belong together, so none would hand its slot on.
    for child_id in unit.families.parked(run.id):
        _give_slot(unit, child_id, now)


def hand_on_slot(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Give the slot of a run to the next of its siblings that wait because of the limit of a `map`."""
    if run.group is not None and (run_id := unit.waits.first(run.group, rules.SLOT_LOCATION)) is not None:
        _give_slot(unit, run_id, now)


def _give_slot(unit: UnitOfWork, run_id: str, now: Micros) -> None:
    parked = unit.runs.get(run_id)
    if parked is not None:
        unit.waits.put(parked.id, ())
        unit.runs.put(rules.unparked(parked, now))
        unit.news.ready.add(parked.type)
