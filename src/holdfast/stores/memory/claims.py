"""Claims: find the runs that a worker gets by the index of runs."""

from __future__ import annotations

from holdfast.core.checkpoint import Claimed, ClaimRequest
from holdfast.core.clock import Micros
from holdfast.core.model import Run
from holdfast.stores.memory.state import State
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import leases


def claim(unit: StateUnit, request: ClaimRequest, now: Micros) -> Claimed:
    """Lease due runs to a worker, as many as it asks for."""
    if request.is_repeat and (won := _won_before(unit.state, request)):
        return Claimed(leases=tuple(leases.lease_of(unit, run) for run in won), next_ready_at=now, now=now)
    chosen, has_more = choose(unit, request, now)
    leased = tuple(leases.lease(unit, run, request, now) for run in chosen)
    next_ready_at = unit.state.indexed().next_ready_at(_enabled(unit.state, request), request.worker)
    return Claimed(leases=leased, next_ready_at=next_ready_at, now=now, has_more=has_more)


def choose(unit: StateUnit, request: ClaimRequest, now: Micros) -> tuple[list[Run], bool]:
    """Return the runs that a worker gets, and True if there is more to claim at once."""
    types = _enabled(unit.state, request)
    limited = {type for type in types if unit.limits.rule(type) is not None}
    due = unit.state.indexed().due(types, limited, now)
    return leases.choose_within_limits(unit, due, request, now)


def _won_before(state: State, request: ClaimRequest) -> list[Run]:
    """Return the runs that an earlier attempt at this claim has won. Its answer was lost."""
    asked = [record.run for record in state.records.values() if record.run.type in request.types]
    return [run for run in asked if run.claim_id == request.id and run.worker == request.worker]


def _enabled(state: State, request: ClaimRequest) -> list[str]:
    """Return the types of a request that are enabled."""
    known = state.types
    return [type for type in dict.fromkeys(request.types) if type not in known or known[type].is_enabled]
