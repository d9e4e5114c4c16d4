"""A member of the simulated world: a process with its own Holdfast and worker, which may die at any time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from holdfast.app import Holdfast, session_of
from holdfast.core.clock import SECOND, FollowingClock, Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.runner.operation import StepCall
from holdfast.runner.registry import Registry
from holdfast.runner.step_info import step_info
from holdfast.testing.simulation.adversity import Adversity
from holdfast.testing.simulation.loop import Process
from holdfast.testing.simulation.network import LEASE_SECONDS, Network, Surroundings
from holdfast.testing.simulation.workload import Workload
from holdfast.worker.worker import Worker

POLL: Micros = 3_600 * SECOND
FLOW_POLL: Micros = 24 * POLL
AGAIN_SECONDS = 2.0


class Employer(Surroundings, Protocol):
    """The parts of the world that a member needs."""

    adversity: Adversity
    workload: Workload
    registry: Registry

    def monotonic_ns(self) -> int: ...

    def effort(self) -> float:
        """Return how many seconds the next body takes."""
        ...


class Member(Holdfast):
    """One process of the world: its own Holdfast, with a worker."""

    def __init__(self, world: Employer, process: Process, network: Network, slot: int) -> None:
        super().__init__("memory://", store=network.as_store)
        self.process = process
        self.network = network
        self.slot = slot
        self.worker_here: Worker | None = None
        self._world = world
        self.include(world.registry)

    async def live(self) -> None:
        """Work like a supervised process: retry until the worker has started, then renew its leases."""
        while True:
            worker = self._local_workers.make(
                name=self.process.name,
                concurrency=self._world.adversity.concurrency,
                lease_seconds=LEASE_SECONDS,
                clock=FollowingClock(self._world.monotonic_ns),
                poll=POLL,
                prune_every=None,
                flows=self._world.workload.has_flows,
                flow_poll=FLOW_POLL,
                has_heart=False,
                always_replay=self._world.adversity.always_replay,
                body_of=self._body,
            )
            try:
                await session_of(self).open()
                await worker.start()
                break
            except StoreUnavailable:
                await asyncio.sleep(AGAIN_SECONDS)
        self.worker_here = worker
        while True:
            # An idle worker needs no heartbeats, and the simulation would make thousands of them.
            await self.network.leased.wait()
            self.network.leased.clear()
            await asyncio.sleep(LEASE_SECONDS / 3)
            while worker.held_count:
                with contextlib.suppress(StoreUnavailable):
                    await worker.renew()
                await asyncio.sleep(LEASE_SECONDS / 3)

    def _body(self, call: StepCall) -> Callable[..., Awaitable[Any]]:
        """Return a replacement for a step body that takes virtual time and reports to the watch."""
        function = getattr(call.function, "original", call.function)  # unwrap it: a retry finds it already replaced

        async def body(*args: Any) -> Any:
            info = step_info()
            self._world.note(self.process, f"does {info.location} of {info.run_id}, attempt {info.attempt}")
            assert self.worker_here is not None
            is_stale = not self._world.watch.is_holder(self.worker_here.id, info)
            with self._world.reporting():
                self._world.watch.body_begins(info, call, is_stale=is_stale)
            try:
                with self._world.workload.body(is_stale=is_stale):
                    result = function(*args)
                    return await result if asyncio.iscoroutine(result) else result
            finally:
                await asyncio.sleep(self._world.effort())

        body.original = function  # type: ignore[attr-defined]
        return body
