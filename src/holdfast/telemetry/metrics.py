"""Metrics: the counters of this process, and gauges of its workers, its hooks and the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from holdfast.core.ports import Store
from holdfast.core.signals import Signals
from holdfast.telemetry import definitions
from holdfast.telemetry.counters import PATTERNS, Counters
from holdfast.telemetry.hooks import Hooks
from holdfast.telemetry.prometheus import CONTENT_TYPE, PrometheusText, Sample
from holdfast.telemetry.store_gauges import StoreGauges


class Busy(Protocol):
    """The part of a worker that metrics read."""

    name: str

    @property
    def held_count(self) -> int: ...

    @property
    def slots(self) -> int: ...


class Metrics:
    """The metrics of one `Holdfast` object. Counting begins when this object is created."""

    content_type = CONTENT_TYPE
    """The content type of `text()`, for your own HTTP response."""

    def __init__(
        self,
        signals: Signals,
        hooks: Hooks,
        workers: Callable[[], Iterable[Busy]],
        store: Callable[[], Awaitable[Store]],
        is_open: Callable[[], bool],
    ) -> None:
        self._hooks = hooks
        self._workers = workers
        self._exposition = PrometheusText()
        self._store_gauges = StoreGauges(store)
        self._is_open = is_open
        signals.tap(Counters(self._exposition), *PATTERNS)

    async def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return self._exposition.text(await self.samples())

    async def samples(self, *, may_open: bool = True) -> Sequence[Sample]:
        """Return the values that are read on demand: from the workers of this process, its hooks, and the store.

        Without `may_open`, the store is read only if it is open: a periodic export must not reopen a closed store.
        """
        samples: list[Sample] = [
            (definitions.HOOKS_DROPPED, (), self._hooks.dropped),
            (definitions.HOOK_ERRORS, (), self._hooks.errors),
        ]
        for worker in self._workers():
            samples.append((definitions.HELD_RUNS, (worker.name,), worker.held_count))
            samples.append((definitions.WORKER_SLOTS, (worker.name,), worker.slots))
        if may_open or self._is_open():
            samples += await self._store_gauges.samples()
        return samples
