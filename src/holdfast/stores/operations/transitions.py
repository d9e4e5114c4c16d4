"""Transitions: give a run its next state. `run_end` has the consequences of an end."""

from __future__ import annotations

from holdfast.core import audit, rules
from holdfast.core import limits as limit_rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancellation
from holdfast.core.model import AuditFact, Run
from holdfast.stores.operations import limits, run_end
from holdfast.stores.operations.unit_of_work import UnitOfWork


def move(unit: UnitOfWork, before: Run, after: Run, now: Micros, fact: AuditFact | None = None) -> None:
    """Give a run its next state, with all consequences. `fact` replaces the audit fact that follows from the change."""
    if after is before:
        return
    has_waited = not before.is_held and limit_rules.parked_at(unit.waits.of(after.id)) is not None
    unit.runs.put(after)
    unit.audit.note(fact or audit.of_move(before, after, now))
    if after.state.is_end:
        run_end.end(unit, after, now, cancel)
    elif after.generation > before.generation:
        run_end.begin_next_generation(unit, after, now, cancel)
    elif after.rollback is not None and before.rollback is None:
        run_end.close(unit, after, now, cancel)
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
    if not why.force and unit.histories.has_undo(run_id):
        after, start = rules.cancel_by_undoing(run, why.reason, now)
        entry = rules.rollback_entry(start, unit.histories.last_position(run_id) + 1, now)
        unit.histories.record(run_id, after.token, entry)
    else:
        after = rules.cancelled(run, why.reason, now)
    move(unit, run, after, now, audit.of_cancel(after, why, now))
    return True
