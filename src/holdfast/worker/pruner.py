"""The pruner: regularly removes expired data from the store, in batches small enough not to disturb other work.

Every worker has one. Several pruners on one store do no harm, so they need no coordination.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator

from holdfast.core.clock import SECOND, Clock, Micros, Timer
from holdfast.core.outage import Outage
from holdfast.core.ports import Pruned, Store
from holdfast.core.retention import RUN_RETENTION

PRUNE_EVERY: Micros = 60 * SECOND
FIRST_BITE, LEAST_BITE, GREATEST_BITE = 100, 50, 500
"""Number of rows of each kind removed at once: a smaller bite could not keep up, a larger one would block others."""
BITE_SECONDS = 0.010
"""Target duration of one bite."""

_BREATH_SECONDS = 0.010

_log = logging.getLogger("holdfast.worker")


async def bites(store: Store, retention: Micros = RUN_RETENTION) -> AsyncIterator[Pruned]:
    """Prune bite by bite until nothing is left to remove, and yield each result. Pauses let other work run between."""
    size = FIRST_BITE
    while True:
        began = time.monotonic()
        pruned = await store.prune(size, retention=retention)
        size = next_bite(size, time.monotonic() - began)
        yield pruned
        if not pruned.has_more:
            return
        await asyncio.sleep(_BREATH_SECONDS)


def next_bite(size: int, seconds: float) -> int:
    """Return the size of the next bite, given the size and duration of the last one."""
    wanted = size * min(2.0, BITE_SECONDS / max(seconds, 1e-6))
    return max(LEAST_BITE, min(GREATEST_BITE, round(wanted)))


class Pruner:
    """Prunes about once per `every` until stopped; each time bite by bite until nothing is left to remove."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        every: Micros = PRUNE_EVERY,
        retention: Micros = RUN_RETENTION,
        chance: random.Random | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention = retention
        self._every = every
        self._chance = chance or random.Random()
        self._loop = asyncio.get_running_loop()
        self._timer: Timer | None = None
        self._task: asyncio.Task[Pruned] | None = None
        self._is_stopped = False
        self._outage = Outage(_log, "cannot prune; trying again", "pruning works again")

    @property
    def is_pruning(self) -> bool:
        """True while it removes data."""
        return self._task is not None

    def start(self) -> None:
        """Start. The first time is random, so that workers started together do not prune together."""
        self._sleep(round(self._every * self._chance.random()))

    async def stop(self) -> None:
        """Stop pruning. A bite in flight is either committed or not; the next pruner removes what is left."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    def _sleep(self, length: Micros) -> None:
        if not self._is_stopped:
            self._timer = self._clock.call_at(self._clock.now() + length, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._prune())
        self._task.add_done_callback(self._pruned)

    async def _prune(self) -> Pruned:
        total = Pruned()
        async for pruned in bites(self._store, self._retention):
            total = total.plus(pruned)
        return total

    def _pruned(self, task: asyncio.Task[Pruned]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._outage.failed(error)
        else:
            self._outage.worked()
            _tell(task.result())
        self._sleep(round(self._every * self._chance.uniform(0.9, 1.1)))


def _tell(total: Pruned) -> None:
    if total != Pruned():
        _log.debug("pruned: %s", total)
    if total.dead_letters:
        _log.warning("%d queue events became dead letters: no run took them in time", total.dead_letters)
