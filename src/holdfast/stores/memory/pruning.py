"""Pruning a state in memory; a dry run prunes a copy."""

from __future__ import annotations

from copy import deepcopy

from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.ports import Pruned
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import pruning


def prune(unit: StateUnit, limit: int, retention: Micros, now: Micros, *, is_dry_run: bool) -> Pruned:
    """Remove what nobody needs any more, or only say how much that would be."""
    if not is_dry_run:
        return pruning.prune(unit, limit, retention, now)
    copy = StateUnit(deepcopy(unit.state))
    pruned = pruning.prune_events(copy, limit, now)
    runs, _ = pruning.purge(copy, max(1, len(copy.state.records)), retention, now)  # a dry run counts all of them
    return replace(pruned, runs=runs)
