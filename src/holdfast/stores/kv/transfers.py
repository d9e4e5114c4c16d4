"""Transfers: export runs from a key-value store, and import runs into it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar, cast

from holdfast.core.clock import Micros
from holdfast.core.model import Schedule
from holdfast.core.transfer import Dump, KeptEvent, Origin, Restoration, Restored
from holdfast.stores.kv import names, reads
from holdfast.stores.kv.catalogue import VALUE
from holdfast.stores.kv.decision import Operation
from holdfast.stores.kv.driver import Driver, Fields, Partition, Read, Reserve
from holdfast.stores.kv.runs import head_of
from holdfast.stores.kv.unit_of_work import KvUnit
from holdfast.stores.operations import schedules, transfers

A = TypeVar("A")


class Decider(Protocol):
    """Carries out an operation and gives hints of its news."""

    def __call__(self, operation: Operation[A], reads: Sequence[Read] = ()) -> Awaitable[A]: ...


class KvTransfer:
    """The `Transfer` capability of a key-value store."""

    def __init__(self, driver: Driver, decide: Decider) -> None:
        self._driver = driver
        self._decide = decide

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        return await reads.dump(self._driver, run_ids)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        return await reads.kept_events(self._driver, after, limit)

    async def last_event(self) -> int:
        return (await self._numbers(0)).start - 1

    async def restore(self, restoration: Restoration) -> Restored:
        export_id = restoration.export_id
        known: list[Read] = [Fields(names.origin(export_id), (VALUE,))]
        known += [head_of(dump.run.id) for dump in restoration.runs]
        origin = await self._first_seen(restoration)

        def operation(unit: KvUnit, now: Micros) -> Restored:
            if origin is not None and unit.origins.get(export_id) is None:
                unit.origins.put(export_id, origin)
            return transfers.restore(unit, restoration, now)

        return await self._decide(operation, known)

    async def _first_seen(self, restoration: Restoration) -> Origin | None:
        """Return the origin of an export that this store does not know yet, with all its numbers reserved.

        Numbers are reserved before the operation and only once. Otherwise another process could get some of them after
        the operation has looked for the last one in use, and an operation that starts over would find them in use.
        """
        loaded = await self._driver.load([Fields(names.origin(restoration.export_id), (VALUE,))])
        if cast("Partition", loaded.answers[0]).fields:
            return None
        high = await self.last_event()
        if (lead := restoration.last_event - high) > 0:
            high = (await self._numbers(lead)).start - 1
        _, since = await self._decide(lambda unit, _: unit.events.newest())
        return Origin(high=high, since=since, at=since)

    async def _numbers(self, count: int) -> range:
        loaded = await self._driver.load([Reserve(names.EVENT_NUMBERS, count)])
        return cast("range", loaded.answers[0])

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        known = [Fields(names.schedule(one.name), (VALUE,)) for one in wanted]
        return await self._decide(lambda unit, _: schedules.restore(unit, wanted), known)
