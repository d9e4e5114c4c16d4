"""Types: what is known and was said of the types of runs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.clock import Micros
from holdfast.core.model import TypeChange, TypeOffer, TypeRule
from holdfast.stores.operations import limits
from holdfast.stores.operations.unit_of_work import UnitOfWork


def change(unit: UnitOfWork, changes: Sequence[TypeChange], now: Micros) -> None:
    """Change the rules of types. What their limits have kept waiting is looked at anew."""
    for one in changes:
        before = unit.types.get(one.name) or TypeRule(name=one.name)
        after = one.applied_to(before)
        unit.types.put(after)
        if before.limits != after.limits:
            limits.apply(unit, after, now)
        if after.is_enabled and not before.is_enabled:
            unit.news.ready.add(one.name)


def offer(unit: UnitOfWork, worker: str, offers: Sequence[TypeOffer], now: Micros) -> None:
    """Note what a worker is ready to work on. What a person has said of a type stays."""
    for one in offers:
        known = unit.types.get(one.name) or TypeRule(name=one.name)
        unit.types.put(known.offered(one, worker, now))
