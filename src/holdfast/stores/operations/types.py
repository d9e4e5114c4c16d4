"""Types: change the rules of types, and record which types the workers offer."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.clock import Micros
from holdfast.core.model import TypeChange, TypeOffer, TypeRule
from holdfast.stores.operations import flows, limits
from holdfast.stores.operations.unit_of_work import UnitOfWork


def change(unit: UnitOfWork, changes: Sequence[TypeChange], now: Micros) -> None:
    """Change the rules of types. If limits change, they are applied again to the runs that hold or wait for slots."""
    for one in changes:
        before = unit.types.get(one.name) or TypeRule(name=one.name)
        after = one.applied_to(before)
        unit.types.put(after)
        if before.limits != after.limits:
            limits.apply(unit, after, now)
        if after.is_enabled and not before.is_enabled:
            unit.news.ready.add(one.name)


def offer(unit: UnitOfWork, worker: str, offers: Sequence[TypeOffer], now: Micros) -> None:
    """Record the types that a worker offers. The settings that a person has made for a type stay.

    Raises before it writes if one of the types is a flow and is offered as code.
    """
    flows.check_offers(unit, worker, offers)
    for one in offers:
        known = unit.types.get(one.name) or TypeRule(name=one.name)
        unit.types.put(known.offered(one, worker, now))
