"""Plans: reads how far a run of a pipeline has got."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.errors import Unreadable
from holdfast.core.plan import PlanProgress, progress
from holdfast.core.ports import Reader
from holdfast.core.questions import Details, ListTypes


async def plan_progress(store: Reader, details: Details) -> PlanProgress | None:
    """Return how far a run has got in the plan of its type. None if its type is not a pipeline."""
    rules = await store.catalog(ListTypes())
    plan = next((rule.plan for rule in rules if rule.name == details.run.type), ())
    return await progress_of(store, details, plan)


async def progress_of(store: Reader, details: Details, plan: Sequence[str]) -> PlanProgress | None:
    """Return how far a run has got in a plan. None if the plan is empty or the history cannot be read."""
    if not plan:
        return None
    try:
        entries = await store.history(details.run.id)
    except Unreadable:
        return None
    return progress(plan, details.run, entries, details.waits)
