"""Types: the limits and other rules of types of runs, and counts of their runs."""

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
from holdfast.engine.async_list import AsyncList
from holdfast.engine.session import SessionPart
from holdfast.engine.store_info import TypeInfo


class Types(SessionPart):
    """`hf.types`: limit, enable, disable and list types of runs. All workers on the store obey."""

    async def set(
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
        """Set the rules of a type, at once and for all workers. An option that is left out stays as it is.

        - `enabled`: False keeps its runs from beginning and continuing, until it is True again.
        - `concurrency`: maximum number of its runs that execute at once. None: no limit.
        - `per_key`: the same for runs with the same value of a tag, such as `{"tenant": 2}`. None: no limit.
        - `rate`: maximum number of runs that begin in a period, such as `(100, 60)` for 100 in any 60 seconds. None: no
          limit.
        - `retention`: how long its runs are kept after their end, in seconds or as a timedelta. None: the retention of
          the worker.
        - `description` and `runtime`: texts for people; workers set them.
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
        store = await self._session.opened_store()
        await store.apply(ChangeTypes(changes=[change]))

    async def enable(self, name: str) -> None:
        """Let runs of a type begin and continue again."""
        await self.set(name, enabled=True)

    async def disable(self, name: str) -> None:
        """Keep workers from claiming runs of a type until it is enabled. New runs are accepted and wait.

        A run that a worker holds at that moment continues until it waits or ends.
        """
        await self.set(name, enabled=False)

    def list(self) -> AsyncList[TypeInfo]:
        """List every type that has a rule, a run or a worker, by name."""
        return AsyncList.of(self._all)

    async def _all(self) -> Sequence[TypeInfo]:
        store = await self._session.opened_store()
        rules = {rule.name: rule for rule in await store.catalog(ListTypes())}
        workers = await store.workers()
        counts = await store.stats(CountRuns())
        parked: Counter[str] = Counter()
        for use in await store.stats(CountSlots()):
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
