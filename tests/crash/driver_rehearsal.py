"""A rehearsal with faults one level deeper: in the driver calls of which the store calls of a worker consist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast.core.checkpoint import Verdicts
from holdfast.core.clock import Clock, Micros
from holdfast.core.model import Holding, WorkerRecord
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Driver
from holdfast.stores.redis import RedisDriver
from holdfast.testing.faults import OF_WORKERS
from tests.crash.rehearsal import Faults, Outcome, Rehearsal, Script, Theatre, perform
from tests.key_value.faulty_driver import DriverFault, DriverFaults, FaultyDriver, of_worker
from tests.stage import Stage

A = TypeVar("A")


async def play_on_driver(script: Script, faults: Mapping[int, DriverFault] | None = None, *, url: str = "") -> Outcome:
    """Play a script on a dictionary, or on the Redis namespace of a URL, and return its outcome.

    The calls of the outcome are the driver calls of the workers.
    """
    planned = DriverFaults(faults or {})
    stage = Stage("redis" if url else "dictionary", Path(), url)
    theatre = DriverTheatre(RestartableStore(_drivers(url, stage.clock, planned), clock=stage.clock), planned)
    outcome = await perform(Rehearsal(script, stage, Faults(), theatre))
    outcome.calls = list(planned.calls)
    return outcome


def _drivers(url: str, clock: Clock, faults: DriverFaults) -> Callable[[], Driver]:
    data = Dictionary()

    def make() -> Driver:
        return FaultyDriver(RedisDriver(url, clock=clock) if url else DictionaryDriver(data, clock=clock), faults)

    return make


class RestartableStore(KeyValueStore):
    """A key-value store that can forget what a process forgets when it dies."""

    def restart(self) -> None:
        self._held.clear()


class DriverTheatre(Theatre):
    """A store whose faults happen in its driver. It marks the driver calls of workers, and loses workers with them."""

    def __init__(self, store: RestartableStore, faults: DriverFaults) -> None:
        super().__init__(store, Faults())
        self._store = store
        self._faults = faults
        faults.crashed = self.cut_off

    def revive(self) -> None:
        self._store.restart()  # the next worker is another process
        self._faults.revive()
        super().revive()

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        with of_worker():
            return super().renew(worker, holdings, lease)

    async def _through(self, name: str, call: Callable[[], Awaitable[A]]) -> A:
        if name not in OF_WORKERS:
            return await call()

        async def marked() -> A:
            with of_worker():
                return await call()

        return await super()._through(name, marked)
