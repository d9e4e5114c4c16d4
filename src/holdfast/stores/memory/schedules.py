"""Schedules: set, paused, removed, triggered, and fired when a slot of theirs has come."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import schedules as rules
from holdfast.core.clock import Micros
from holdfast.core.model import Firing, Schedule
from holdfast.core.ports import Due, Fired, ScheduleQuery
from holdfast.stores.memory import starts
from holdfast.stores.memory.state import State


def put(state: State, wanted: Sequence[Schedule], now: Micros) -> list[Schedule]:
    """Set schedules; of several of one name the last counts."""
    for schedule in wanted:
        _keep(state, rules.planned(state.schedules.get(schedule.name), schedule, now))
    return [state.schedules[schedule.name] for schedule in wanted]


def restore(state: State, wanted: Sequence[Schedule]) -> int:
    """Keep schedules as they stood elsewhere, unless there are such; how many were not there."""
    unknown = [schedule for schedule in wanted if schedule.name not in state.schedules]
    for schedule in unknown:
        _keep(state, schedule)
    return len(unknown)


def pause(state: State, names: Sequence[str], now: Micros, *, is_paused: bool) -> list[bool]:
    """Have schedules fire no more, or again; of each, whether that changed anything."""
    change = rules.paused if is_paused else rules.resumed
    changed: list[bool] = []
    for name in names:
        before = state.schedules.get(name)
        after = None if before is None else change(before, now)
        if after is not None:
            _keep(state, after)
        changed.append(after is not None)
    return changed


def remove(state: State, names: Sequence[str]) -> list[bool]:
    """Forget schedules; of each, whether there was one."""
    return [state.schedules.pop(name, None) is not None for name in names]


def trigger(state: State, name: str, run_id: str, now: Micros) -> bool:
    """Make a run of a schedule, unless that was done before; whether there is such a schedule."""
    schedule = state.schedules.get(name)
    if schedule is not None and run_id not in state.records:
        after, intent = rules.triggered(schedule, _open_run_ids(state, schedule), run_id, now)
        starts.create_children(state, [intent], now)
        state.schedules[name] = after
    return schedule is not None


def fire(state: State, firings: Sequence[Firing], now: Micros) -> list[Fired]:
    """Make the runs of slots that are due, each schedule if it is still as it was when that was found."""
    return [_fire_one(state, firing, now) for firing in firings]


def _fire_one(state: State, firing: Firing, now: Micros) -> Fired:
    name = firing.schedule.name
    if state.schedules.get(name) != firing.schedule:
        return Fired(is_stale=True)
    after, intents, told = rules.fired(firing, _open_run_ids(state, firing.schedule), now)
    starts.create_children(state, intents, now)
    state.schedules[name] = after
    return told


def _open_run_ids(state: State, schedule: Schedule) -> list[str]:
    records = [state.records.get(run_id) for run_id in schedule.open_run_ids]
    return [record.run.id for record in records if record is not None and not record.run.state.is_end]


def _keep(state: State, schedule: Schedule) -> None:
    if state.schedules.get(schedule.name) != schedule:
        state.schedules[schedule.name] = schedule
        state.news.is_rescheduled = True


def list_schedules(state: State, query: ScheduleQuery) -> list[Schedule]:
    matching = [schedule for schedule in state.schedules.values() if query.admits(schedule)]
    return sorted(matching, key=lambda schedule: schedule.name)[: query.limit]


def due(state: State, limit: int, after: tuple[Micros, str], now: Micros) -> Due:
    """The first schedules that are due, and when the next one is that is not."""
    slots = ((schedule.next_at, name) for name, schedule in state.schedules.items())
    planned = sorted((at, name) for at, name in slots if at is not None)
    names = [name for at, name in planned if at <= now and (at, name) > after]
    upcoming = (at for at, _ in planned if at > now)
    schedules = tuple(state.schedules[name] for name in names[:limit])
    return Due(schedules=schedules, next_at=next(upcoming, None), now=now)
