"""Controls: what a person has done to a run. The audit keeps the request, so that a repeat of it changes nothing."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from holdfast.core import audit, retention, revision, rules
from holdfast.core.checkpoint import Cancel, Control, Delete, Fork, Pause, Recover, Resume, Rewind, Wake
from holdfast.core.clock import Micros
from holdfast.core.errors import RunNotFound
from holdfast.core.model import Run
from holdfast.stores.memory import moves
from holdfast.stores.memory.state import Record, State


def control(state: State, run_id: str, request: Control, now: Micros) -> bool:
    """Carry out a person's wish. Raises before it writes."""
    record = state.records.get(run_id)
    if record is None:
        raise RunNotFound(f"there is no run {run_id}")
    if any(fact.data.get(audit.REQUEST) == request.id for fact in record.audit):
        return True
    if record.run.deleted_at is not None:
        raise RunNotFound(f"there is no run {run_id}")
    return _carry_out(state, record, request, now)


def _carry_out(state: State, record: Record, request: Control, now: Micros) -> bool:
    run = record.run
    match request:
        case Cancel():
            return moves.cancel(state, run.id, request, now)
        case Pause():
            return _change(state, record, rules.paused(run, now), request, now)
        case Resume():
            return _change(state, record, rules.resumed(run, record.waits, now), request, now)
        case Wake():
            return _change(state, record, rules.roused(run, record.waits, now), request, now)
        case Rewind() | Recover():
            return _revise(state, record, request, now)
        case Fork():
            return _fork(state, record, request, now)
        case Delete():
            return _delete(state, record, request, now)
        case _:
            assert_never(request)


def _change(state: State, record: Record, after: Run | None, request: Pause | Resume | Wake, now: Micros) -> bool:
    if after is None:
        return False
    moves.move(state, record, after, now, audit.of_change(after, request, now))
    if after.is_held:
        state.news.arrived.add(after.id)  # so that its holder looks
    return True


def _revise(state: State, record: Record, request: Rewind | Recover, now: Micros) -> bool:
    """Change the history and the inbox of a run. It waits for nothing until its code has asked again."""
    entries = record.history()
    children = {id: state.records[id].run for id in revision.open_children(entries) if id in state.records}
    inbox = tuple(record.inbox.values())
    revised = revision.revise(record.run, entries, inbox, children, request, now=now)
    for location in revised.dropped:
        del record.entries[location]
    record.entries |= {entry.location: entry for entry in revised.reset}
    record.inbox = {arrival.number: arrival for arrival in revised.inbox}
    if record.run.is_held:
        state.news.taken.add(record.run.id)
    moves.move(state, record, revised.run, now, revised.fact)
    record.waits = ()
    for child_id in revised.cancelled:
        _part_with(state, child_id, now)
    for child_id, location in revised.attached.items():
        child = state.records[child_id]
        child.run = replace(child.run, parent_location=location)
    return True


def _part_with(state: State, child_id: str, now: Micros) -> None:
    """Cancel a child of which its parent knows no more, and wants to hear no more."""
    child = state.records.get(child_id)
    if child is not None:
        if not (child.run.state.is_end or rules.is_parked(child.waits)):
            moves.hand_on_slot(state, child.run, now)
        child.run = replace(child.run, parent_location=None)
        moves.cancel(state, child_id, rules.FORGOTTEN, now)


def _fork(state: State, record: Record, request: Fork, now: Micros) -> bool:
    revision.check_free(record.run, is_forced=request.force)
    forked, entries = revision.fork(record.run, record.history(), request, now)
    if forked.id in state.records:
        return False
    state.records[forked.id] = made = Record(forked, entries={entry.location: entry for entry in entries})
    to, of = audit.of_fork(record.run, request, now)
    state.note(record, to)
    state.note(made, of)
    state.news.ready.add(forked.type)
    return True


def _delete(state: State, record: Record, request: Delete, now: Micros) -> bool:
    """Take a run out of sight. One that lives ends first, as by any cancel."""
    revision.check_free(record.run, is_forced=request.force)
    moves.cancel(state, record.run.id, rules.deletion(request), now)
    if record.run.key is not None:
        state.keys.pop(record.run.key, None)
    record.run = retention.deleted(record.run, now)
    state.note(record, audit.of_control(record.run.id, "deleted", request, now))
    return True
