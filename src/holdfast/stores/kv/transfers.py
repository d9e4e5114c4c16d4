"""Transfers: export runs from a key-value store, and import runs into it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar, cast

from holdfast.core.model import Schedule
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored
from holdfast.stores.kv import names, reads
from holdfast.stores.kv.decision import Operation
from holdfast.stores.kv.driver import Driver, Fields, Read, Reserve
from holdfast.stores.kv.runs import head_of
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
        loaded = await self._driver.load([Reserve(names.EVENT_NUMBERS, 0)])
        return cast("range", loaded.answers[0]).start - 1

    async def restore(self, restoration: Restoration) -> Restored:
        known: list[Read] = [Fields(names.origin(restoration.export_id), ("value",))]
        known += [head_of(dump.run.id) for dump in restoration.runs]
        return await self._decide(lambda unit, now: transfers.restore(unit, restoration, now), known)

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        known = [Fields(names.schedule(one.name), ("value",)) for one in wanted]
        return await self._decide(lambda unit, _: schedules.restore(unit, wanted), known)
