"""The pruner: regularly removes expired data from the store, in batches small enough not to disturb other work.

Every worker has one. Several pruners on one store do no harm, so they need no coordination.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator

from holdfast.core.clock import SECOND, Clock, Micros
from holdfast.core.outage import Outage
from holdfast.core.ports import Pruned, Store
from holdfast.core.retention import RUN_RETENTION
from holdfast.worker.background import BackgroundJob

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


class Pruner(BackgroundJob[Pruned]):
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
        super().__init__(clock)
        self._store = store
        self._retention = retention
        self._every = every
        self._chance = chance or random.Random()
        self._outage = Outage(_log, "cannot prune; trying again", "pruning works again")

    def start(self) -> None:
        """Start. The first time is random, so that workers started together do not prune together."""
        self.wake_by(self._clock.now() + round(self._every * self._chance.random()))

    async def _round(self) -> Pruned:
        total = Pruned()
        async for pruned in bites(self._store, self._retention):
            total = total.plus(pruned)
        return total

    def _on_end(self, task: asyncio.Task[Pruned]) -> None:
        if (error := task.exception()) is not None:
            self._outage.failed(error)
        else:
            self._outage.worked()
            _log_pruned(task.result())
        self.wake_by(self._clock.now() + round(self._every * self._chance.uniform(0.9, 1.1)))


def _log_pruned(total: Pruned) -> None:
    if total != Pruned():
        _log.debug("pruned: %s", total)
    if total.dead_letters:
        _log.warning("%d queue events became dead letters: no run took them in time", total.dead_letters)
