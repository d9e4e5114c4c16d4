"""Leases: the heartbeat renews them, and a worker asks whether it still holds them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.checkpoint import Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Fence, Holding, Run, WorkerRecord
from holdfast.stores.operations.unit_of_work import UnitOfWork


def renew(unit: UnitOfWork, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros, now: Micros) -> Verdicts:
    """Record the heartbeat of a worker, and renew the leases that it still holds."""
    unit.workers.beat(worker, now)
    verdicts = check(unit, holdings, now)
    kept = [verdict.run_id for verdict in verdicts.verdicts if not verdict.is_lost]
    if kept:
        unit.runs.prolong(kept, now + lease)
    return verdicts


def check(unit: UnitOfWork, holdings: Sequence[Holding], now: Micros) -> Verdicts:
    """Return a verdict on each run that a worker says it holds."""
    fences = unit.runs.fences([holding.run_id for holding in holdings])
    return Verdicts(
        verdicts=tuple(_verdict_on(unit, holding, fences.get(holding.run_id)) for holding in holdings), now=now
    )


def verdict(unit: UnitOfWork, run: Run | Fence, seen: int) -> Verdict:
    """Return the verdict on a run that the worker still holds."""
    newer = unit.inboxes.newer(run, seen) if run.arrivals > seen else ()
    return Verdict(run_id=run.id, arrivals=newer, seen=run.arrivals, stop=run.stop)


def _verdict_on(unit: UnitOfWork, holding: Holding, run: Run | Fence | None) -> Verdict:
    if run is None or run.token != holding.token or not run.is_held:
        return Verdict(run_id=holding.run_id, is_lost=True, is_held=False)
    return verdict(unit, run, holding.seen)
