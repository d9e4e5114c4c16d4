"""Families: live children, by their parent, in the order of their creation."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.model import Run
from holdfast.stores.kv import names
from holdfast.stores.kv.runs import KvRuns, head_of, reads_to_close
from holdfast.stores.kv.waits import KvWaits
from holdfast.stores.kv.workspace import Workspace


class KvFamilies:
    """Children, by their parent."""

    def __init__(self, space: Workspace, runs: KvRuns, waits: KvWaits) -> None:
        self._space = space
        self._runs = runs
        self._waits = waits

    def _ids(self, parent_id: str) -> list[str]:
        members = self._space.range(names.all_children(parent_id), names.children(parent_id))
        loaded = [member[names.TIME_DIGITS :] for member in members]
        return list(dict.fromkeys([*loaded, *self._runs.new_children(parent_id)]))

    def _live(self, parent_id: str) -> list[Run]:
        ids = self._ids(parent_id)
        self._space.expect(head_of(run_id) for run_id in ids if not self._runs.is_new(run_id))
        runs = map(self._runs.get, ids)
        return [run for run in runs if run is not None and not run.state.is_end]

    def to_cancel(self, parent_id: str) -> Sequence[str]:
        ids = self._ids(parent_id)
        # Read all that a cancel of each child needs in one round, for all children of a level.
        self._space.expect(read for run_id in ids if not self._runs.is_new(run_id) for read in reads_to_close(run_id))
        return [run.id for run in self._live(parent_id) if run.on_close == "cancel"]

    def detach(self, parent_id: str) -> None:
        for child in self._live(parent_id):
            self._runs.put(replace(child, parent_location=None))

    def parked(self, parent_id: str) -> Sequence[str]:
        return [child.id for child in self._live(parent_id) if rules.is_parked(self._waits.of(child.id))]

    def seated(self, parent_id: str | None, group: str | None) -> int:
        siblings = [child for child in self._live(parent_id or "") if child.group == group]
        return sum(not rules.is_parked(self._waits.of(child.id)) for child in siblings)
