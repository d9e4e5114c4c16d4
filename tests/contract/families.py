"""A run with many children that end with it."""

from __future__ import annotations

from holdfast.core.model import Lease
from holdfast.core.ports import Store
from holdfast.testing.contract.arrange import an_id, an_intent, checkpoint_for, held, write


def children_of(count: int) -> range:
    """Return the numbers of so many children of run 1."""
    return range(2, count + 2)


async def held_with_children(store: Store, count: int) -> Lease:
    """Create run 1 with so many children, and return its lease."""
    lease = await held(store)
    family = [
        an_intent(number, type="child", parent_id=an_id(1), parent_location=f"call#{number}", on_close="cancel")
        for number in children_of(count)
    ]
    await write(store, checkpoint_for(lease, children=tuple(family)))
    return lease
