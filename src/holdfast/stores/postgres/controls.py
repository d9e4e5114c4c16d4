"""Controls: what a person does to a run, decided by the operations of the memory store."""

from __future__ import annotations

import msgspec

from holdfast.core.checkpoint import Control, Recover
from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.stores.operations import controls as model
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.deciding import decided
from holdfast.stores.postgres.talks import Talk
from holdfast.stores.postgres.wishes import Wishes
from holdfast.stores.postgres.working import WorkingSet


def control(calls: Calls, run_id: str, request: Control, at: Micros | None) -> Talk[tuple[bool | None, News]]:
    """Apply a control request, and tell what there is to tell of it."""
    wishes = Wishes()
    wishes.control(run_id, request)
    if isinstance(request, Recover):
        # Those below it as well, and twice as many as are reopened: of these some may have to be passed by.
        found = yield calls.lost, (run_id, 2 * request.limit)
        wishes.reopened(msgspec.json.decode(found, type=list[str]))

    def operation(working: WorkingSet, now: Micros) -> bool | None:
        return model.control(working.unit, run_id, request, now)

    return (yield from decided(calls, wishes, operation, at))
