"""Controls: what a person has done to a run. The audit keeps the request, so that a repeat of it changes nothing."""

from __future__ import annotations

from typing import assert_never

from holdfast.core import audit, retention, revision, rules
from holdfast.core.checkpoint import Cancel, Control, Delete, Fork, Pause, Recover, Resume, Rewind, Wake
from holdfast.core.clock import Micros
from holdfast.core.errors import RunNotFound
from holdfast.core.model import Run
from holdfast.stores.memory import moves, revisions
from holdfast.stores.memory.state import Record, State


def control(state: State, run_id: str, request: Control, now: Micros) -> bool | None:
    """Apply a control request. Raises before it writes."""
    record = state.records.get(run_id)
    if record is None:
        raise RunNotFound(f"there is no run {run_id}")
    if any(fact.data.get(audit.REQUEST) == request.id for fact in record.audit):
        return True
    if record.run.deleted_at is not None:
        raise RunNotFound(f"there is no run {run_id}")
    return _carry_out(state, record, request, now)


def _carry_out(state: State, record: Record, request: Control, now: Micros) -> bool | None:
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
            return revisions.revise(state, run, request, now)
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
