"""Claims: which runs a worker gets, by priority, ready time and id."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Claimed, ClaimRequest, LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.model import Lease
from holdfast.stores.memory.state import Record, State


def claim(state: State, request: ClaimRequest, now: Micros) -> Claimed:
    """Give a worker the runs that are due, as many as it asks for."""
    types = frozenset(request.types)
    queued = [r for r in state.records.values() if r.run.ready_at is not None and r.run.type in types]
    if request.is_repeat:
        won = [r for r in queued if r.run.claim_id == request.id and r.run.worker == request.worker]
        if won:
            return Claimed(leases=tuple(_lease_of(r) for r in won), next_ready_at=now, now=now)
    due = [r for r in queued if (r.run.ready_at or 0) <= now]
    leases = tuple(lease(state, record, request, now) for record in _chosen(due, request))
    others = [r for r in queued if r.run.worker != request.worker]
    next_ready_at = min((r.run.ready_at or 0 for r in others), default=None)
    return Claimed(leases=leases, next_ready_at=next_ready_at, now=now)


def lease(state: State, record: Record, by: ClaimRequest | LeaseRequest, now: Micros) -> Lease:
    """Give a run to a worker."""
    before = record.run
    record.run = rules.claimed(before, by, now)
    state.note(record, audit.of_claim(before, record.run, now))
    return _lease_of(record)


def _chosen(due: Sequence[Record], request: ClaimRequest) -> list[Record]:
    """As many as were asked for, and of the suspects at most one."""
    chosen: list[Record] = []
    may_suspect = request.may_suspect
    for record in sorted(due, key=_claim_order):
        if len(chosen) == request.limit:
            break
        if rules.is_suspect(record.run):
            if not may_suspect:
                continue
            may_suspect = False
        chosen.append(record)
    return chosen


def _claim_order(record: Record) -> tuple[int, Micros, str]:
    return record.run.priority, record.run.ready_at or 0, record.run.id


def _lease_of(record: Record) -> Lease:
    return Lease(run=record.run, entries=record.history(), arrivals=tuple(record.inbox.values()))
