"""The census: how many runs there are in the store, in which state, and how long they have been waiting for a worker.

The store has to count for that. So it is asked when somebody wants to know, and never for more than a hundredth of the
time: what took long to count is told again for a while.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.clock import SECOND
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Store
from holdfast.engine.routing import alive, is_handled
from holdfast.telemetry.catalogue import QUEUE_AGE, QUEUE_DEPTH, RUNS, STORE_UP, UNHANDLED
from holdfast.telemetry.exposition import Sample

SHARE = 100
"""After a count that took so long, the next one comes no sooner than so many times that."""


class Census:
    """What the store answers, once it is open, counted anew or remembered."""

    def __init__(self, store: Callable[[], Awaitable[Store]], *, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._counts = Reading(self._count, now)
        self._queues = Reading(self._look_at_queues, now)

    async def samples(self) -> Sequence[Sample]:
        """The numbers; none but that the store is not up, if it does not answer."""
        try:
            return [(STORE_UP, (), 1), *await self._queues.taken(), *await self._counts.taken()]
        except StoreUnavailable:
            return [(STORE_UP, (), 0)]

    async def _count(self) -> list[Sample]:
        counts = await (await self._store()).counts()
        return [
            (RUNS, (type, state.value), count) for type, states in counts.items() for state, count in states.items()
        ]

    async def _look_at_queues(self) -> list[Sample]:
        store = await self._store()
        now = await store.now()
        living = alive(await store.workers(), now)
        samples: list[Sample] = []
        for backlog in await store.backlog():
            type = (backlog.type,)
            samples.append((QUEUE_DEPTH, type, backlog.count))
            samples.append((QUEUE_AGE, type, max(0, now - backlog.since) / SECOND))
            if not is_handled(backlog.type, living):
                samples.append((UNHANDLED, type, backlog.count))
        return samples


class Reading:
    """Something that is looked up, but not too often."""

    def __init__(self, take: Callable[[], Awaitable[list[Sample]]], now: Callable[[], float]) -> None:
        self._take = take
        self._now = now
        self._next_at = 0.0
        self._last: list[Sample] = []

    async def taken(self) -> list[Sample]:
        """The samples, as new as is affordable."""
        began = self._now()
        if began >= self._next_at:
            self._last = await self._take()
            ended = self._now()
            self._next_at = ended + (ended - began) * SHARE
        return self._last
