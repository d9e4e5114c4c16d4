"""Transfers: export runs from the memory store, and import runs into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from holdfast.core.clock import Clock
from holdfast.core.model import Schedule
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored
from holdfast.stores.memory import reads
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import schedules, transfers


class MemoryTransfer:
    """The `Transfer` capability of the memory store. `locked` gives exclusive use of the unit of work."""

    def __init__(self, locked: Callable[[], AbstractContextManager[StateUnit]], clock: Clock) -> None:
        self._locked = locked
        self._clock = clock

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        with self._locked() as unit:
            return reads.dump(unit.state, run_ids)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        with self._locked() as unit:
            return reads.kept_events(unit.state, after, limit)

    async def last_event(self) -> int:
        with self._locked() as unit:
            return unit.state.event_count

    async def restore(self, restoration: Restoration) -> Restored:
        with self._locked() as unit:
            return transfers.restore(unit, restoration, self._clock.now())

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        with self._locked() as unit:
            return schedules.restore(unit, wanted)
