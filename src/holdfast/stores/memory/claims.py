"""Claims: which runs a worker gets, in claim order."""

from __future__ import annotations

from functools import partial

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Claimed, ClaimRequest, LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.model import Lease, Run, TypeRule
from holdfast.stores.memory import limits
from holdfast.stores.memory.state import Record, State
from holdfast.stores.operations import claims


def claim(state: State, request: ClaimRequest, now: Micros) -> Claimed:
    """Give a worker the runs that are due, as many as it asks for."""
    if request.is_repeat and (won := _won_before(state, request)):
        return Claimed(leases=tuple(_lease_of(r) for r in won), next_ready_at=now, now=now)
    chosen, has_more = choose(state, request, now)
    leases = tuple(lease(state, record, request, now) for record in chosen)
    others = [r.run.ready_at for r in _queued(state, request) if r.run.worker != request.worker]
    next_ready_at = min((at for at in others if at is not None), default=None)
    return Claimed(leases=leases, next_ready_at=next_ready_at, now=now, has_more=has_more)


def _won_before(state: State, request: ClaimRequest) -> list[Record]:
    """What this very claim has won already, as its answer got lost."""
    asked = [record for record in state.records.values() if record.run.type in request.types]
    return [r for r in asked if r.run.claim_id == request.id and r.run.worker == request.worker]


def _queued(state: State, request: ClaimRequest) -> list[Record]:
    """Runs of types that are not switched off, which may be claimed now or at some other time."""
    rules = [state.types.get(type) or TypeRule(name=type) for type in request.types]
    types = {rule.name for rule in rules if rule.is_enabled}
    return [r for r in state.records.values() if r.run.ready_at is not None and r.run.type in types]


def lease(state: State, record: Record, by: ClaimRequest | LeaseRequest, now: Micros) -> Lease:
    """Give a run to a worker, with all it needs to continue it."""
    hold(state, record, by, now)
    return _lease_of(record)


def hold(state: State, record: Record, by: ClaimRequest | LeaseRequest, now: Micros) -> None:
    """Have a worker hold a run."""
    before = record.run
    record.run = rules.claimed(before, by, now)
    state.note(record, audit.of_claim(before, record.run, now))


def choose(state: State, request: ClaimRequest, now: Micros) -> tuple[list[Record], bool]:
    """The runs that a worker gets; those beyond a limit are parked.

    And whether there is more: enough were parked for one time, or others were let go who waited for a rate.
    """
    due = [r.run for r in _queued(state, request) if rules.is_due(r.run, now)]
    admit = partial(_admit, state, now)
    chosen, is_stopped = claims.choose(claims.queue_of(due), request, admit)
    return [state.records[run.id] for run in chosen], is_stopped or bool(state.news.ready)


def _admit(state: State, now: Micros, run: Run) -> Run | None:
    return run if limits.admit(state, state.records[run.id], now) else None


def _lease_of(record: Record) -> Lease:
    return Lease(run=record.run, entries=record.history(), arrivals=tuple(record.inbox.values()))
