"""Limits: who has slots of which limit, and who waits for them. Who gets one is decided in `holdfast.stores.limits`."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from holdfast.core import limits, rules
from holdfast.core.clock import Micros
from holdfast.core.limits import Window
from holdfast.core.model import AuditFact, Run, TypeRule, Wait
from holdfast.stores import limits as deciding
from holdfast.stores.memory.state import Place, Record, State


def admit(state: State, record: Record, now: Micros) -> bool:
    """Whether a run that is due may be claimed. If so it has all slots it needs; if not it is parked."""
    return deciding.admit(StateBook(state), record.run, now) is not None


def is_waiting(record: Record) -> bool:
    """Whether a run waits for a slot of its type."""
    return limits.parked_at(record.waits) is not None


def leave(state: State, record: Record, now: Micros, *, has_waited: bool) -> None:
    """A run needs no slots any more, or has waited for some until now: it gives back its own, and waits for none."""
    deciding.leave(StateBook(state), record.run, now, has_waited=has_waited)


def apply(state: State, rule: TypeRule, now: Micros) -> None:
    """Have the limits of a type be those of a rule."""
    deciding.apply(StateBook(state), rule, now)


class StateBook:
    """The state as the book in which limits are kept."""

    def __init__(self, state: State) -> None:
        self._state = state

    def rule(self, type: str) -> TypeRule | None:
        rule = self._state.types.get(type)
        return rule if rule is not None and rule.is_limited else None

    def window(self, type: str) -> Window:
        return self._state.windows.get(type, Window())

    def keep_window(self, type: str, window: Window) -> None:
        self._state.windows[type] = window

    def taken(self, slot: str) -> int:
        return len(self._state.slots[slot])

    def counted(self, type: str) -> Sequence[Run]:
        return [record.run for record in self._state.counted(type)]

    def key_queues(self, type: str) -> Sequence[str]:
        return self._state.key_queues(type)

    def let_all_go(self, type: str, now: Micros) -> None:
        self._state.let_all_go(type, now)

    def first(self, queue: str) -> Run | None:
        record = first_parked(self._state, queue, rules.LIMIT_LOCATION)
        return None if record is None else record.run

    def heads(self, queue: str) -> Sequence[Run]:
        first = first_parked(self._state, queue, rules.LIMIT_LOCATION)
        if first is None:
            return ()
        level = limits.level_of(first.run)
        beside = (first_parked_at(self._state, queue, other) for other in limits.levels_beside(level))
        return [first.run, *(record.run for record in beside if record is not None)]

    def run(self, run_id: str) -> Run:
        return self._state.records[run_id].run

    def waits(self, run_id: str) -> Sequence[Wait]:
        return self._state.records[run_id].waits

    def put(self, run: Run) -> None:
        record = self._state.records[run.id]
        for slot in record.run.slots:
            self._state.slots[slot].discard(run.id)
        for slot in run.slots:
            self._state.slots[slot].add(run.id)
        record.run = run

    def wait(self, run_id: str, waits: Sequence[Wait]) -> None:
        self._state.records[run_id].waits = tuple(waits)
        if (wait := limits.parked_at(waits)) is not None:
            (queue,) = wait.names
            heapq.heappush(self._state.parked[queue], (wait.after, wait.since, run_id))

    def note(self, fact: AuditFact) -> None:
        self._state.note(self._state.records[fact.run_id], fact)

    def tell_ready(self, type: str) -> None:
        self._state.news.ready.add(type)


def first_parked(state: State, slot: str, location: str) -> Record | None:
    """The first of those who wait, at a location, for a slot. Others left the queue without a word."""
    waiting = state.parked.get(slot)
    while waiting:
        record = _parked(state, slot, location, waiting[0])
        if record is not None:
            return record
        heapq.heappop(waiting)
    return None


def first_parked_at(state: State, slot: str, level: int) -> Record | None:
    """The first of those who wait for a slot of a limit and have this level of priority and rank."""
    for place in sorted(state.parked.get(slot, ())):
        if place[0] > level:
            break
        # Only those of this level are looked up: a store that has loaded some of each level knows no others.
        if place[0] == level and (record := _parked(state, slot, rules.LIMIT_LOCATION, place)) is not None:
            return record
    return None


def _parked(state: State, slot: str, location: str, place: Place) -> Record | None:
    """The run in a place of a queue, if it still waits there."""
    after, since, run_id = place
    record = state.records.get(run_id)
    waits = record.waits if record is not None else ()
    is_there = any(
        (wait.location, wait.names, wait.after, wait.since) == (location, (slot,), after, since) for wait in waits
    )
    return record if is_there else None
