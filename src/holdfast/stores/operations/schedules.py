"""Schedules: set, pause, remove and trigger them, and fire their slots when they are due."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import schedules as rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Fired
from holdfast.core.model import Firing, Intent, Schedule
from holdfast.stores.operations import starts
from holdfast.stores.operations.unit_of_work import UnitOfWork


def put(unit: UnitOfWork, wanted: Sequence[Schedule], now: Micros) -> list[Schedule]:
    """Set schedules. If several have the same name, the last one counts."""
    planned: dict[str, Schedule] = {}
    for schedule in wanted:
        planned[schedule.name] = rules.planned(unit.schedules.get(schedule.name), schedule, now)
        _keep(unit, planned[schedule.name])
    return [planned[schedule.name] for schedule in wanted]


def restore(unit: UnitOfWork, wanted: Sequence[Schedule]) -> int:
    """Add schedules of another store as they stood there, unless the name exists. Return how many were added."""
    unknown = [schedule for schedule in wanted if unit.schedules.get(schedule.name) is None]
    for schedule in unknown:
        _keep(unit, schedule)
    return len(unknown)


def pause(unit: UnitOfWork, names: Sequence[str], now: Micros, *, is_paused: bool) -> list[bool]:
    """Pause or resume schedules. Return for each whether it changed."""
    change = rules.paused if is_paused else rules.resumed
    changed: list[bool] = []
    for name in names:
        before = unit.schedules.get(name)
        after = None if before is None else change(before, now)
        if after is not None:
            _keep(unit, after)
        changed.append(after is not None)
    return changed


def trigger(unit: UnitOfWork, name: str, run_id: str, now: Micros) -> bool:
    """Create a run of a schedule, unless the run exists. Return True if the schedule exists."""
    schedule = unit.schedules.get(name)
    if schedule is not None and unit.runs.get(run_id) is None:
        after, intent = rules.triggered(schedule, _open_run_ids(unit, schedule), run_id, now)
        starts.create_children(unit, [intent], now)
        unit.schedules.put(after)
    return schedule is not None


def fire(unit: UnitOfWork, firings: Sequence[Firing], now: Micros) -> list[Fired]:
    """Create the runs of due slots. A schedule that has changed since the firing was planned is stale, and skipped."""
    intents: list[Intent] = []
    answers: list[Fired] = []
    for firing in firings:
        if unit.schedules.get(firing.schedule.name) != firing.schedule:
            answers.append(Fired(is_stale=True))
            continue
        after, made, fired = rules.fired(firing, _open_run_ids(unit, firing.schedule), now)
        intents += made
        if after != firing.schedule:
            unit.schedules.put(after)
        answers.append(fired)
    if intents:
        starts.create_children(unit, intents, now)
    return answers


def _open_run_ids(unit: UnitOfWork, schedule: Schedule) -> list[str]:
    runs = [unit.runs.get(run_id) for run_id in schedule.open_run_ids]
    return [run.id for run in runs if run is not None and not run.state.is_end]


def _keep(unit: UnitOfWork, schedule: Schedule) -> None:
    if unit.schedules.get(schedule.name) != schedule:
        unit.schedules.put(schedule)
        unit.news.is_rescheduled = True
