"""Types: what is known and was said of the types of runs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.clock import Micros
from holdfast.core.model import TypeChange, TypeOffer, TypeRule
from holdfast.stores.memory import limits
from holdfast.stores.memory.state import State


def change(state: State, changes: Sequence[TypeChange], now: Micros) -> None:
    """Have types be otherwise. What their limits have kept waiting is looked at anew."""
    for one in changes:
        before = state.types.get(one.name) or TypeRule(name=one.name)
        after = state.types[one.name] = one.applied_to(before)
        if before.limits != after.limits:
            limits.apply(state, after, now)
        if after.is_enabled and not before.is_enabled:
            state.news.ready.add(one.name)


def offer(state: State, worker: str, offers: Sequence[TypeOffer], now: Micros) -> None:
    """Note what a worker is ready to work on. What a person has said of a type stays."""
    for one in offers:
        known = state.types.get(one.name) or TypeRule(name=one.name)
        state.types[one.name] = known.offered(one, worker, now)
