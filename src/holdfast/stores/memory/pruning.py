"""Pruning: prune the state in memory, or a copy of it in a dry run."""

from __future__ import annotations

from copy import deepcopy

from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.ports import Pruned
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import pruning, types


def prune(unit: StateUnit, limit: int, retention: Micros, now: Micros, *, is_dry_run: bool) -> Pruned:
    """Remove data that is no longer needed. A dry run only counts it."""
    if not is_dry_run:
        return pruning.prune(unit, limit, retention, now)
    copy = StateUnit(deepcopy(unit.state))
    pruned = pruning.prune_events(copy, limit, now)
    removed = types.prune_flows(copy, limit, retention, now)
    runs, _ = pruning.purge(copy, max(1, len(copy.state.records)), retention, now)  # a dry run counts all of them
    return replace(pruned, runs=runs, flows=removed)
