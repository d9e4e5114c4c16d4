"""Types: what is said of the types of runs, and what is known of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from msgspec import UNSET, UnsetType

from holdfast.core import limits
from holdfast.core.commands import ChangeTypes
from holdfast.core.model import TypeRule
from holdfast.core.questions import CountRuns, CountSlots, ListTypes
from holdfast.core.types import checked_change
from holdfast.engine.base import EngineBase
from holdfast.engine.info import TypeInfo


class TypeVerbs(EngineBase):
    """The part of an engine that limits types, switches them off and on, and lists them."""

    async def type(
        self,
        name: str,
        *,
        enabled: bool | UnsetType = UNSET,
        concurrency: int | UnsetType | None = UNSET,
        per_key: Mapping[str, int] | UnsetType | None = UNSET,
        rate: tuple[int, float | timedelta] | UnsetType | None = UNSET,
        retention: float | timedelta | UnsetType | None = UNSET,
        description: str | UnsetType = UNSET,
        runtime: str | UnsetType = UNSET,
    ) -> None:
        """Say something of a type, now and for all workers; what is not said stays as it is, and None lifts a limit.

        `enabled=False`: no run of it is begun or continued, until it is True again. `concurrency`: so many of its runs
        are worked on at once; `per_key={"tenant": 2}`: so many of those with the same value of this tag. `rate=(100,
        60)`: so many begin in any 60 seconds. `retention` (seconds or a timedelta): how long its runs are kept after
        their end.
        """
        change = checked_change(
            name,
            enabled=enabled,
            concurrency=concurrency,
            per_key=per_key,
            rate=rate,
            retention=retention,
            description=description,
            runtime=runtime,
        )
        await self.opened()
        await self.store.apply(ChangeTypes(changes=[change]))

    async def types(self) -> Sequence[TypeInfo]:
        """Every type that was spoken of, has runs, or has a worker, by name."""
        await self.opened()
        rules = {rule.name: rule for rule in await self.store.catalog(ListTypes())}
        workers = await self.store.workers()
        counts = await self.store.stats(CountRuns())
        parked: Counter[str] = Counter()
        for use in await self.store.stats(CountSlots()):
            parked[limits.type_of(use.name)] += use.waiting
        names = sorted({*rules, *counts, *(type for worker in workers for type in worker.types)})
        return [
            TypeInfo.of(
                rules.get(name) or TypeRule(name=name),
                [worker for worker in workers if name in worker.types],
                counts.get(name, {}),
                parked[name],
            )
            for name in names
        ]
