"""Queues: hand an event of a queue to one waiting run, and take it back if that run stops waiting for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Run, Wait
from holdfast.core.topics import may_be_handed
from holdfast.stores.operations import inboxes
from holdfast.stores.operations.unit_of_work import OddRow, UnitOfWork

_log = logging.getLogger("holdfast.store")


def pass_on(unit: UnitOfWork, arrival: Arrival, now: Micros, *, by: str = "") -> bool:
    """Hand a pending event to the run that has waited longest. Return False, and keep it pending, if no run waits."""
    run = _next_in_line(unit, arrival)
    if run is not None:
        hand(unit, run, arrival, now, by=by)
    return run is not None


def _next_in_line(unit: UnitOfWork, arrival: Arrival) -> Run | None:
    """Return the run that has waited longest for an event."""
    for run_id, wait in unit.waits.in_line(arrival.name):
        try:
            run = unit.runs.get(run_id)
        except OddRow as error:
            _log.warning("event of topic %s passes over run %s: %s", arrival.name, run_id, error)
            continue
        if run is None or not may_be_handed(run) or not rules.accepts(wait, arrival):
            continue
        if not inboxes.is_satisfied(unit, run, wait):
            return run
    return None


def hand(unit: UnitOfWork, run: Run, arrival: Arrival, now: Micros, *, by: str = "") -> None:
    """Hand an event to a run. No other run gets it while this run waits for it."""
    unit.events.hand(arrival, run.id)
    inboxes.deliver(unit, run, replace(arrival, number=run.arrivals + 1), now, by=by)


def give_back(unit: UnitOfWork, run: Run, waits: Sequence[Wait], now: Micros) -> None:
    """Take back each queue event in a run's inbox that the run no longer waits for, and pass it on."""
    for arrival in unit.inboxes.exclusive(run):
        if any(rules.accepts(wait, arrival) for wait in waits):
            continue
        unit.inboxes.take(run.id, arrival.number)
        unit.events.give_back(arrival)
        pass_on(unit, arrival, now)
