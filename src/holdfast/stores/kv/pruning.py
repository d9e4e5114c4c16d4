"""Pruning: remove data that is no longer needed, in small commits."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.ports import Pruned
from holdfast.stores.kv import names
from holdfast.stores.kv.decision import Decisions
from holdfast.stores.kv.driver import Range
from holdfast.stores.kv.unit_of_work import KvUnit
from holdfast.stores.operations import pruning, types

EVERYTHING = 1_000_000


async def prune(decisions: Decisions, limit: int, retention: Micros, *, is_dry_run: bool) -> Pruned:
    """Remove data that is no longer needed. A dry run only counts it.

    Each kind is removed by a commit of its own, so that a conflict over one does not repeat the others.
    """

    def prune_events(unit: KvUnit, now: Micros) -> Pruned:
        unit.workers.forget_idle(unit.space.range(Range(names.HOLDERS)))
        return pruning.prune_events(unit, limit, now)

    def purge(unit: KvUnit, now: Micros) -> tuple[dict[str, int], bool]:
        return pruning.purge(unit, EVERYTHING if is_dry_run else limit, retention, now)

    def prune_flows(unit: KvUnit, now: Micros) -> int:
        return types.prune_flows(unit, limit, retention, now)

    pruned = (await decisions.decide(prune_events, is_dry_run=is_dry_run)).answer
    runs, has_more = (await decisions.decide(purge, is_dry_run=is_dry_run)).answer
    removed = (await decisions.decide(prune_flows, is_dry_run=is_dry_run)).answer
    has_more = pruned.has_more or ((has_more or removed == limit) and not is_dry_run)
    return replace(pruned, runs=runs, flows=removed, has_more=has_more)
