"""Gauges of the store: the number of runs by state, and how long they have waited for a worker.

The store has to count rows for these gauges. So it counts only on demand, and for at most a hundredth of the time:
after a slow count, the old numbers are returned for a while. A caller waits at most `PATIENCE_SECONDS`. The count goes
on when the caller stops waiting, so on a large store the next call returns the new numbers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.clock import SECOND
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Store
from holdfast.core.questions import CountReady, CountRuns
from holdfast.engine.explain import alive, is_handled
from holdfast.telemetry.definitions import QUEUE_AGE, QUEUE_DEPTH, RUNS, STORE_UP, UNHANDLED
from holdfast.telemetry.prometheus import Sample

SHARE = 100
"""Minimum pause before the next count, as a multiple of the duration of the last count."""

PATIENCE_SECONDS = 2.0
"""Maximum time that a caller waits for new numbers. After it, the caller gets the last ones."""

FAILURE_SECONDS = 300.0
"""Maximum pause after a count that failed, for example because it took too long."""


class StoreGauges:
    """The gauges of the store: new numbers, or the last ones if a new count would come too soon."""

    def __init__(self, store: Callable[[], Awaitable[Store]], *, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._counts = GaugeReading(self._count, now, failure_seconds=FAILURE_SECONDS)
        self._queues = GaugeReading(self._look_at_queues, now)

    async def samples(self) -> Sequence[Sample]:
        """Return the gauges. If the store does not answer, return only `STORE_UP` with the value 0."""
        try:
            queues = await self._queues.taken()
        except StoreUnavailable:
            return [(STORE_UP, (), 0)]
        try:
            counts = await self._counts.taken()
        except StoreUnavailable:
            counts = []  # the store is up, but it has too many runs to count in time
        return [(STORE_UP, (), 1), *queues, *counts]

    async def _count(self) -> list[Sample]:
        counts = await (await self._store()).stats(CountRuns())
        return [
            (RUNS, (type, state.value), count) for type, states in counts.items() for state, count in states.items()
        ]

    async def _look_at_queues(self) -> list[Sample]:
        store = await self._store()
        now = await store.now()
        living = alive(await store.workers(), now)
        samples: list[Sample] = []
        for backlog in await store.stats(CountReady()):
            type = (backlog.type,)
            samples.append((QUEUE_DEPTH, type, backlog.count))
            samples.append((QUEUE_AGE, type, max(0, now - backlog.since) / SECOND))
            if not is_handled(backlog.type, living):
                samples.append((UNHANDLED, type, backlog.count))
        return samples


class GaugeReading:
    """A reading that is taken on demand, but not too often. After a failure, the pause is at most `failure_seconds`."""

    def __init__(
        self, take: Callable[[], Awaitable[list[Sample]]], now: Callable[[], float], *, failure_seconds: float = 0.0
    ) -> None:
        self._take = take
        self._now = now
        self._failure_seconds = failure_seconds
        self._next_at = 0.0
        self._last: list[Sample] = []
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    async def taken(self) -> list[Sample]:
        """Return the newest affordable samples. Raises the error of the last reading if it failed."""
        loop = asyncio.get_running_loop()
        task = self._task
        if task is not None and (task.done() or task.get_loop() is not loop):
            task = self._task = None
        if task is None and self._now() >= self._next_at:
            task = self._task = loop.create_task(self._look())
        if task is not None:
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        if self._error is not None:
            raise self._error
        return self._last

    async def _look(self) -> None:
        began = self._now()
        longest = float("inf")
        try:
            self._last = await self._take()
            self._error = None
        except Exception as error:  # noqa: BLE001 - `taken` raises it to its callers
            self._error = error
            longest = self._failure_seconds
        ended = self._now()
        self._next_at = ended + min((ended - began) * SHARE, longest)
