"""Leases: a claim gives them to a worker, a heartbeat renews them, and the worker asks whether it still holds them.

Each store finds the due runs itself. The choice among them is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop

from holdfast.core import audit, rules
from holdfast.core.checkpoint import ClaimRequest, LeaseRequest, Verdict, Verdicts
from holdfast.core.claim_order import counted, next_rank, rank_of
from holdfast.core.clock import Micros
from holdfast.core.limits import PARKED_AT_ONCE
from holdfast.core.model import Fence, Holding, Lease, Run, WorkerRecord
from holdfast.stores.operations import limits
from holdfast.stores.operations.unit_of_work import UnitOfWork

Queue = Iterable[Mapping[int, Iterator[Run]]]
"""Due runs: one mapping for each priority, lowest first, from each rank to its runs by ready time and id."""


def choose(queue: Queue, request: ClaimRequest, admit: Callable[[Run], Run | None]) -> tuple[list[Run], bool]:
    """Choose as many runs as the request asks for, in claim order, and at most one suspect.

    `admit` gives a run the slots it needs, or parks the run and returns None. The second value is True if the claim
    stopped early because it had parked `PARKED_AT_ONCE` runs, the maximum for one transaction.
    """
    chosen: list[Run] = []
    parked = 0
    may_suspect = request.may_suspect
    for ranks in queue:
        heads: dict[int, Run] = {}
        to_read: Iterable[int] = ranks
        shares = request.shares
        while len(chosen) < request.limit and parked < PARKED_AT_ONCE:
            for rank in to_read:
                if (head := next(ranks[rank], None)) is not None:
                    heads[rank] = head
            if not heads:
                break
            rank = next_rank(shares, heads) if len(heads) > 1 else next(iter(heads))
            run = heads.pop(rank)
            to_read = (rank,)
            is_suspect = rules.is_suspect(run)
            if is_suspect and not may_suspect:
                continue
            admitted = admit(run)
            if admitted is None:
                parked += 1
                continue
            may_suspect = may_suspect and not is_suspect
            chosen.append(admitted)
            if len(ranks) > 1:
                shares = counted(shares, rank)
    return chosen, parked == PARKED_AT_ONCE


def choose_within_limits(unit: UnitOfWork, queue: Queue, request: ClaimRequest, now: Micros) -> tuple[list[Run], bool]:
    """Choose runs of types that may have limits, and park the runs beyond a limit.

    The second value is True if there is more to claim at once: the claim stopped early, or it made runs ready that
    had waited for a rate.
    """
    released = unit.limits.released

    def admit(run: Run) -> Run | None:
        # Read the run again: the admission of an earlier run may have passed a slot on to this one.
        return limits.admit(unit, unit.limits.tagged(run.id), now)

    chosen, is_stopped = choose(queue, request, admit)
    return chosen, is_stopped or unit.limits.released > released


def lease(unit: UnitOfWork, run: Run, by: ClaimRequest | LeaseRequest, now: Micros) -> Lease:
    """Lease a run to a worker, with its history and its arrivals."""
    held = hold(unit, run, by, now)
    if run.token == 0:  # never claimed before, so it has no history
        return Lease(run=held, arrivals=unit.inboxes.newer(held, 0) if held.arrivals else ())
    return lease_of(unit, held)


def hold(unit: UnitOfWork, run: Run, by: ClaimRequest | LeaseRequest, now: Micros) -> Run:
    """Make a worker the holder of a run, and audit the claim."""
    held = rules.claimed(run, by, now)
    unit.runs.put(held)
    unit.audit.note_often(audit.of_claim(run, held, now), held.token)
    return held


def lease_of(unit: UnitOfWork, run: Run) -> Lease:
    """Return the lease of a held run, with its history and its arrivals. The entries for people are left out."""
    arrivals = unit.inboxes.newer(run, 0) if run.arrivals else ()
    return Lease(run=run, entries=tuple(unit.histories.leased(run.id)), arrivals=arrivals)


def queue_of(due: Iterable[Run]) -> Queue:
    """Sort due runs, given in any order, into a queue."""
    lanes: dict[int, dict[int, list[tuple[Micros, str, Run]]]] = {}
    for run in due:
        lane = lanes.setdefault(run.priority, {}).setdefault(rank_of(run), [])
        lane.append((run.ready_at or 0, run.id, run))
    return [{rank: _in_order(lane) for rank, lane in lanes[priority].items()} for priority in sorted(lanes)]


def _in_order(lane: list[tuple[Micros, str, Run]]) -> Iterator[Run]:
    """Yield the runs of a lane by ready time and id."""
    heapify(lane)  # sorts only as far as the claim reads, because a lane may be long
    while lane:
        yield heappop(lane)[2]


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
