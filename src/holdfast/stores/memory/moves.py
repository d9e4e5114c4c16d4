"""Moves: a run gets its next state, and all that an end entails happens at once."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import audit, kinship, rules
from holdfast.core.checkpoint import Cancel
from holdfast.core.clock import Micros
from holdfast.core.model import AuditFact, Run
from holdfast.stores.memory import inboxes, letters, limits, queues
from holdfast.stores.memory.state import Record, State


def move(state: State, record: Record, after: Run, now: Micros, fact: AuditFact | None = None) -> None:
    """Give a run its next state, and do what that entails. `fact` is noted in place of the one that follows from it."""
    before, record.run = record.run, after
    has_waited = not before.is_held and limits.is_waiting(record)
    state.note(record, fact or audit.of_move(before, after, now))
    if after.state.is_end:
        _bury(state, record, now)
    elif after.generation > before.generation:
        _begin_anew(state, record, now)
    elif after.rollback is not None and before.rollback is None:
        _close(state, record, now)
    is_in_race = rules.is_in_race(after, now)
    if has_waited or not is_in_race:
        limits.leave(state, record, now, has_waited=has_waited)
    if is_in_race and not after.is_held:
        state.news.ready.add(after.type)


def cancel(state: State, run_id: str, request: Cancel, now: Micros) -> bool:
    """End a run as cancelled, or let it undo first what it did. False if there is nothing to change."""
    record = state.records.get(run_id)
    if record is None or record.run.state.is_end:
        return False
    run = record.run
    if run.rollback is not None and not request.force:
        return False
    if run.is_held:
        state.news.taken.add(run_id)
    if record.has_undo and not request.force:
        after, around = rules.cancel_by_undoing(run, request.reason, now)
        entry = rules.turn_around_entry(around, record.last_position + 1, now)
        record.entries[entry.location] = entry
    else:
        after = rules.cancelled(run, request.reason, now)
    move(state, record, after, now, audit.of_cancel(after, request, now))
    return True


def _bury(state: State, record: Record, now: Micros) -> None:
    run = record.run
    had_slot = not rules.is_parked(record.waits)
    _close(state, record, now)
    letters.give_up_messages(state, record, now)
    record.empty_inbox()
    state.news.ended.add(run.id)
    if had_slot:
        hand_on_slot(state, run, now)
    _tell_parent(state, run, now)


def _tell_parent(state: State, run: Run, now: Micros) -> None:
    """Have the end of a run arrive at its parent. Without a location, that knows it no more."""
    if run.parent_id is None or run.parent_location is None:
        return
    parent = state.records.get(run.parent_id)
    if parent is None or parent.run.state.is_end:
        return
    if kinship.is_reopened(run):
        recorded, has_unread_end = parent.recorded(run.parent_location), parent.has_end_of(run.id)
        if not kinship.waits_for(recorded, run, has_unread_end=has_unread_end):
            return
    inboxes.deliver(state, parent, rules.child_end(run, parent.run.arrivals + 1, now), now)


def _close(state: State, record: Record, now: Micros) -> None:
    """The code of a run is over: it waits for nothing any more, and its children follow their close policy."""
    record.waits = ()
    queues.give_back(state, record, now)
    is_first = not state.closing
    children = state.children.get(record.run.id, ())
    state.closing += [child_id for child_id in children if state.records[child_id].run.on_close == "cancel"]
    # Their own children join the list: a chain of runs may be longer than calls may be deep.
    for child_id in state.closing if is_first else ():
        cancel(state, child_id, rules.CLOSING, now)
    if is_first:
        state.closing.clear()


def _begin_anew(state: State, record: Record, now: Micros) -> None:
    """A run has become its next generation, which takes over the unread messages and nothing else."""
    for child_id in state.children.get(record.run.id, ()):
        child = state.records[child_id]
        if not child.run.state.is_end:
            child.run = replace(child.run, parent_location=None)
    children = list(state.children.get(record.run.id, ()))
    _close(state, record, now)
    messages = record.unread_messages()
    record.empty_inbox()
    record.inbox |= {message.number: message for message in messages}
    # Their siblings no longer know that they belong together, so none would hand its slot on.
    for child in map(state.records.__getitem__, children):
        if rules.is_parked(child.waits):
            _give_slot(state, child, now)


def hand_on_slot(state: State, run: Run, now: Micros) -> None:
    """Let the next one go of those that wait until fewer of their siblings run."""
    if run.group is not None and (record := limits.first_parked(state, run.group, rules.SLOT_LOCATION)) is not None:
        _give_slot(state, record, now)


def _give_slot(state: State, record: Record, now: Micros) -> None:
    record.waits = ()
    record.run = rules.unparked(record.run, now)
    state.news.ready.add(record.run.type)
