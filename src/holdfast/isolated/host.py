"""The host of one lease: drives a run as a worker does, and writes each of its checkpoints as one batch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from holdfast.config import settings
from holdfast.core.checkpoint import Finish
from holdfast.core.clock import Clock, Micros
from holdfast.core.model import Lease
from holdfast.core.news import Signals
from holdfast.isolated.driver import CheckedDriver
from holdfast.isolated.namespace import Namespace
from holdfast.runner.definition import Definition
from holdfast.runner.operation import StepCall
from holdfast.worker.committer import CheckpointSource, Transactor
from holdfast.worker.executor import Executor
from holdfast.worker.run_driver import RunDriver
from holdfast.worker.signals import SignalSender

NAME = "isolated"
"""The name of the worker in log records and signals."""


class NamespaceHost:
    """Drives one run under one lease. No body executes before the lease is in the namespace."""

    name = NAME
    leased_until: Micros = sys.maxsize  # no other process writes the run
    transactor: Transactor | None = None
    is_draining = False
    grace_seconds = 0.0
    gathers = False
    always_replay = False
    body_of: Callable[[StepCall], Callable[..., Any]] | None = None

    def __init__(self, namespace: Namespace, driver: CheckedDriver, clock: Clock, signals: Signals) -> None:
        self.clock = clock
        self.signal_sender = SignalSender(signals, NAME, clock)
        self.executor = Executor(steps=settings.STEPS.default, threads=settings.THREADS.default, is_open=False)
        self._namespace = namespace
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._source: CheckpointSource | None = None
        self._is_gone = False
        self._moved: asyncio.Future[None] | None = None

    @property
    def committer(self) -> NamespaceHost:
        return self

    # What the run driver calls

    def add(self, source: CheckpointSource) -> None:
        self._source = source
        self._move()

    def is_crowded(self) -> bool:
        return True  # a run that only waits leaves memory at once: the alarm wakes it

    def linger(self, driver: RunDriver, is_lingering: bool) -> None: ...  # noqa: FBT001 - see the protocol

    def release(self, driver: RunDriver, end: Finish | None, ready_at: Micros | None) -> None:
        self._is_gone = True
        self._move()

    def _move(self) -> None:
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)

    # Driving

    async def drive(self, lease: Lease, definition: Definition) -> None:
        """Drive the run until it leaves memory. If that fails, it is dropped as by a crash."""
        driver = RunDriver(lease, definition, self)
        try:
            self._loop.call_soon(self._begin, driver)
            await self._next_move()
            if self._source is None and not self._is_gone:
                await self._open()
            while not self._is_gone:
                await self._write()
                await self._next_move()
        finally:
            if not self._is_gone:
                await self._apart(driver.drop)
            self.executor.close()

    def _begin(self, driver: RunDriver) -> None:
        driver.begin()
        self._move()

    async def _open(self) -> None:
        """Write the lease, then let the bodies begin."""
        await self._namespace.commit(self._driver)
        self._loop.call_soon(self.executor.open)

    async def _next_move(self) -> None:
        """Wait until there is a checkpoint to write, or the run has left."""
        if self._source is None and not self._is_gone:
            self._moved = self._loop.create_future()
            await self._moved

    async def _write(self) -> None:
        source, self._source = self._source, None
        checkpoint = None if source is None else source.take_checkpoint()
        if source is None or checkpoint is None:
            return
        try:
            verdict = self._namespace.write(checkpoint, self.clock.now())
        except Exception as error:  # noqa: BLE001 - the driver blocks the run, as it does if a store refuses
            self._loop.call_soon(source.on_refused, error)
            return
        await self._namespace.commit(self._driver)
        self._loop.call_soon(self._written, source, verdict)

    def _written(self, source: CheckpointSource, verdict: Any) -> None:
        # First the answer, because it may abandon bodies that have not begun.
        source.on_written(verdict)
        self.executor.open()

    async def _apart(self, action: Callable[[], None]) -> None:
        """Call a method of the run driver from a plain callback, because code of a run never runs inside a task."""
        done = self._loop.create_future()

        def call() -> None:
            try:
                action()
            finally:
                done.set_result(None)

        self._loop.call_soon(call)
        await done
