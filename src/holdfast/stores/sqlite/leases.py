"""Leases: prolonged by the heartbeat, looked at by whoever wants to know whether he still holds them."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.checkpoint import Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Fence, Holding, Run, WorkerInfo
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.desk import Desk

_BEAT = f"""
    insert into worker ({rows.WORKER_COLUMNS})
    values ({rows.placed(rows.WORKER_COLUMNS)})
    on conflict (id) do update
    set name = excluded.name, host = excluded.host, pid = excluded.pid, types = excluded.types,
        concurrency = excluded.concurrency, heartbeat_at = excluded.heartbeat_at
"""

_PROLONG = """
    update run
    set ready_at = ?
    where id = ?
"""  # by the primary key

_RETIRE = """
    delete from worker
    where id = ?
"""  # by the primary key


def renew(desk: Desk, worker: WorkerInfo, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
    """Tell that a worker lives, and prolong the leases that are still its own."""
    now = desk.now()
    types = rows.json_of(worker.types)
    beat = (worker.id, worker.name, worker.host, worker.pid, types, worker.concurrency, now, now)
    desk.connection.execute(_BEAT, beat)
    verdicts = look(desk, holdings, now)
    kept = [verdict.run_id for verdict in verdicts.verdicts if not verdict.is_lost]
    if kept:
        desk.flush()
        desk.connection.executemany(_PROLONG, [(now + lease, run_id) for run_id in kept])
        desk.forget(kept)
    return verdicts


def look(desk: Desk, holdings: Sequence[Holding], now: Micros) -> Verdicts:
    """What a holder would be told of each of its runs."""
    fences = desk.fences([holding.run_id for holding in holdings])
    return Verdicts(
        verdicts=tuple(_look_at(desk, holding, fences.get(holding.run_id)) for holding in holdings), now=now
    )


def verdict(desk: Desk, run: Run | Fence, seen: int) -> Verdict:
    """What a holder is told of a run that is its own."""
    newer = desk.newer(run, seen)
    return Verdict(run_id=run.id, arrivals=newer, seen=run.arrivals, is_pausing=run.is_pausing)


def retire(desk: Desk, worker_id: str) -> None:
    desk.connection.execute(_RETIRE, (worker_id,))


def _look_at(desk: Desk, holding: Holding, run: Fence | None) -> Verdict:
    if run is None or run.token != holding.token or not run.is_held:
        return Verdict(run_id=holding.run_id, is_lost=True, is_held=False)
    return verdict(desk, run, holding.seen)
