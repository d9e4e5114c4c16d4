"""A unit of work on a workspace: what the operations of `stores.operations` read and write."""

from __future__ import annotations

from holdfast.core.news import News
from holdfast.stores.kv.catalogue import KvDeadLetters, KvEvents, KvFlows, KvOrigins, KvSchedules, KvWorkers
from holdfast.stores.kv.histories import KvAudit, KvHistories, KvInboxes
from holdfast.stores.kv.limits import KvLimits, KvTypes
from holdfast.stores.kv.pruning import KvHousekeeping
from holdfast.stores.kv.runs import KvFamilies, KvRuns, KvWaits
from holdfast.stores.kv.workspace import Workspace


class KvUnit:
    """All parts of the store, on one workspace.

    `token_base`: tokens of runs grow beyond it. `is_repeat`: an earlier attempt may have been written, and its answer
    was lost.
    """

    def __init__(self, space: Workspace, token_base: int = 0, *, is_repeat: bool = False) -> None:
        self.space = space
        self.is_repeat = is_repeat
        self.news = News()
        self.closing: list[str] = []
        self.runs = KvRuns(space, token_base)
        self.waits = KvWaits(space, self.runs)
        self.families = KvFamilies(space, self.runs, self.waits)
        self.histories = KvHistories(space)
        self.inboxes = KvInboxes(space, self.runs)
        self.events = KvEvents(space)
        self.dead_letters = KvDeadLetters(space)
        self.types = KvTypes(space)
        self.flows = KvFlows(space)
        self.limits = KvLimits(space, self.runs, self.waits, self.types)
        self.schedules = KvSchedules(space)
        self.workers = KvWorkers(space)
        self.origins = KvOrigins(space)
        self.audit = KvAudit(space, self.runs)
        self.housekeeping = KvHousekeeping(space, self.runs, self.histories, self.types)

    def flush(self) -> None:
        """Write everything that was collected to the workspace."""
        self.waits.flush()
        self.runs.flush()
