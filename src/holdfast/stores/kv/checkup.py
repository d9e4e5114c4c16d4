"""The self-check of a key-value store: compares what is counted with the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.core.ports import Finding
from holdfast.stores.kv import names, reads
from holdfast.stores.kv.driver import Driver, Fields, Range
from holdfast.stores.kv.limits import USED
from holdfast.stores.kv.run_fields import run_of
from holdfast.stores.kv.runs import HEAD
from holdfast.stores.operations.limits import finding_of


async def findings(driver: Driver) -> Sequence[Finding]:
    return [await _slots(driver)]


async def _slots(driver: Driver) -> Finding:
    """Compare the number of runs that have each slot with the number that is kept."""
    slots = await reads.members_of(driver, names.SLOTS)
    kept = await reads.partitions(driver, [Fields(names.slot(slot), (USED,)) for slot in slots])
    used = Counter({slot: int(one.fields.get(USED, b"0")) for slot, one in zip(slots, kept, strict=True)})
    types = await reads.members_of(driver, names.TYPES)
    members = await reads.answers(driver, [Range(names.slotted(type)) for type in types])
    run_ids = [run_id for some in members for run_id in some]
    heads = await reads.partitions(driver, [Fields(names.head(run_id), HEAD) for run_id in run_ids])
    found = Counter(slot for head in heads if head.fields for slot in run_of(head.fields).slots)
    return finding_of(sum(abs(used[slot] - found[slot]) for slot in {*used, *found}))
