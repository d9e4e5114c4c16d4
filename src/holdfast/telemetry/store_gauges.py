"""Gauges of the store: how many runs there are, in which state, and how long they have waited for a worker.

The store has to count for that. So it is asked when somebody wants to know, and never for more than a hundredth of the
time: what took long to count is told again for a while. Nobody waits long for it, and whoever does not wait any more
does not stop it: on a large store the numbers come with the next question, but they come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.clock import SECOND
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Store
from holdfast.core.questions import CountReady, CountRuns
from holdfast.engine.liveness import alive, is_handled
from holdfast.telemetry.definitions import QUEUE_AGE, QUEUE_DEPTH, RUNS, STORE_UP, UNHANDLED
from holdfast.telemetry.prometheus import Sample

SHARE = 100
"""After a count that took so long, the next one comes no sooner than so many times that."""

PATIENCE_SECONDS = 2.0
"""How long whoever asks waits for new numbers; then the last ones are told."""

FAILURE_SECONDS = 300.0
"""A count that failed, because it took too long, say, is tried again after this time at the latest."""


class StoreGauges:
    """What the store answers, once it is open, counted anew or remembered."""

    def __init__(self, store: Callable[[], Awaitable[Store]], *, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._counts = GaugeReading(self._count, now, failure_seconds=FAILURE_SECONDS)
        self._queues = GaugeReading(self._look_at_queues, now)

    async def samples(self) -> Sequence[Sample]:
        """The numbers; none but that the store is not up, if it does not answer."""
        try:
            queues = await self._queues.taken()
        except StoreUnavailable:
            return [(STORE_UP, (), 0)]
        try:
            counts = await self._counts.taken()
        except StoreUnavailable:
            counts = []  # it is up, but has too many runs to count
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
    """Something that is looked up, but not too often; if that fails, again after `failure_seconds` at the latest."""

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
        """The samples, as new as is affordable. Raises what the last look raised."""
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
        except Exception as error:  # noqa: BLE001 - whoever asks is told
            self._error = error
            longest = self._failure_seconds
        ended = self._now()
        self._next_at = ended + min((ended - began) * SHARE, longest)
