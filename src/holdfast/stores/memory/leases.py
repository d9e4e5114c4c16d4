"""Leases: prolonged by the heartbeat, looked at by whoever wants to know whether he still holds them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.checkpoint import Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Holding, WorkerInfo
from holdfast.stores.memory.state import Record, State


def renew(state: State, worker: WorkerInfo, holdings: Sequence[Holding], lease: Micros, now: Micros) -> Verdicts:
    """Tell that a worker lives, and prolong the leases that are still its own."""
    known = state.workers.get(worker.id)
    started_at = known.started_at if known else now
    state.workers[worker.id] = replace(worker, started_at=started_at, heartbeat_at=now)
    verdicts = look(state, holdings, now)
    for told in verdicts.verdicts:
        if not told.is_lost:
            record = state.records[told.run_id]
            record.run = replace(record.run, ready_at=now + lease)
    return verdicts


def look(state: State, holdings: Sequence[Holding], now: Micros) -> Verdicts:
    """What a holder would be told of each of its runs."""
    return Verdicts(verdicts=tuple(_look_at(state, holding) for holding in holdings), now=now)


def verdict(record: Record, seen: int) -> Verdict:
    """What a holder is told of a run that was its own until now."""
    if not record.run.is_held:
        return Verdict(run_id=record.run.id, is_held=False, state=record.run.state)
    run = record.run
    return Verdict(run_id=run.id, arrivals=record.newer(seen), seen=run.arrivals, is_pausing=run.is_pausing)


def retire(state: State, worker_id: str) -> None:
    state.workers.pop(worker_id, None)


def _look_at(state: State, holding: Holding) -> Verdict:
    record = state.records.get(holding.run_id)
    if record is None or record.run.token != holding.token or not record.run.is_held:
        return Verdict(run_id=holding.run_id, is_lost=True, is_held=False)
    return verdict(record, holding.seen)
