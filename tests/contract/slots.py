"""Invariants of slots, checked after each step of walks and of the machine."""

from __future__ import annotations

from collections import defaultdict

from holdfast.core import limits, rules
from holdfast.core.clock import Micros
from holdfast.core.model import Run, TypeRule, Wait
from holdfast.core.states import RunState
from holdfast.stores.memory.state import State
from holdfast.stores.memory.unit_of_work import StateUnit


def check_slots(state: State, now: Micros) -> None:
    """I8: no orphan state. I9: no run has more slots than it needs, and none waits while a slot is free."""
    had: dict[str, set[str]] = defaultdict(set)
    for run_id, record in state.records.items():
        run, rule = record.run, state.types.get(record.run.type) or TypeRule(name=record.run.type)
        _check_had(run, rule, now)
        for slot in run.slots:
            had[slot].add(run_id)
        if (wait := limits.parked_at(record.waits)) is not None:
            (queue,) = wait.names
            _check_parked(StateUnit(state), run, rule, wait, now, in_front=_in_front(state, rule, queue))
    assert {slot: runs for slot, runs in state.slots.items() if runs} == dict(had)


def _check_had(run: Run, rule: TypeRule, now: Micros) -> None:
    """Check that a held run has the slots it needs, and that a run with any slot has all and can be claimed."""
    wanted = set(limits.slots_of(rule, run))
    if run.is_held:
        assert set(run.slots) == wanted - {limits.rate_slot(rule.name)}
    elif run.slots:
        assert set(run.slots) == wanted
        assert rules.is_due(run, now)


def _in_front(state: State, rule: TypeRule, slot: str) -> int:
    """Return the number of runs that need a slot of a key and wait for a slot of the type."""
    shared = limits.type_slot(rule.name), limits.rate_slot(rule.name)
    waiting = [(record.run, limits.parked_at(record.waits)) for record in state.records.values()]
    return sum(w is not None and w.names[0] in shared and slot in limits.slots_of(rule, run) for run, w in waiting)


def _check_parked(unit: StateUnit, run: Run, rule: TypeRule, wait: Wait, now: Micros, *, in_front: int) -> None:
    """Check that a waiting run cannot continue, or that only time has freed its slot and the first one is due."""
    assert run.state in (RunState.PENDING, RunState.SUSPENDED, RunState.BLOCKED, RunState.ROLLING_BACK)
    assert not run.is_held
    assert not run.slots
    (queue,) = wait.names
    first_id = unit.waits.first(queue, rules.LIMIT_LOCATION)
    assert first_id is not None
    first = unit.limits.tagged(first_id)
    of_type = limits.type_slot(run.type)
    is_full = rule.concurrency is not None and unit.limits.taken(of_type) >= rule.concurrency
    if queue == limits.rate_slot(run.type):
        assert rule.rate is not None
        is_used_up = (
            unit.limits.taken(queue) + limits.begun(unit.limits.window(run.type), rule.rate, now) >= rule.rate.count
        )
        assert is_full or is_used_up or rules.is_due(first, now)
        assert is_full or first.ready_at is not None or unit.limits.taken(queue) >= rule.rate.count
        return
    if queue == of_type:
        assert is_full
    else:
        assert unit.limits.taken(queue) + in_front >= limits.slots_of(rule, run)[queue]
    assert run.ready_at is None
