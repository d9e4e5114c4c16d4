"""Metrics: the counters of this process, and gauges of its workers, its hooks and the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from holdfast.core.clock import SECOND
from holdfast.core.errors import StoreUnavailable
from holdfast.core.news import Signal, Signals
from holdfast.core.ports import Store
from holdfast.core.questions import CountReady, CountRuns
from holdfast.engine.explain import alive, is_handled
from holdfast.telemetry import prometheus
from holdfast.telemetry.hooks import Hooks
from holdfast.telemetry.prometheus import (
    CONTENT_TYPE,
    QUEUE_AGE,
    QUEUE_DEPTH,
    RUNS,
    STORE_UP,
    UNHANDLED,
    Metric,
    PrometheusText,
    Sample,
)

PATTERNS = ("run.*", "step.succeeded", "step.failed", "step.retried", "worker.flushed")

_COUNTED = {
    "run.started": prometheus.RUNS_STARTED,
    "run.claimed": prometheus.RUNS_CLAIMED,
    "run.suspended": prometheus.RUNS_SUSPENDED,
    "run.blocked": prometheus.RUNS_BLOCKED,
    "run.lost": prometheus.LEASES_LOST,
    "step.failed": prometheus.STEP_FAILURES,
    "step.retried": prometheus.STEP_RETRIES,
}


class Recorder(Protocol):
    """A sink for counts and measurements. `labels` are the label values, in the order of the metric's label names."""

    def add(self, metric: Metric, labels: tuple[str, ...], amount: int = 1) -> None: ...

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None: ...


class Counters:
    """A tap on signals that feeds a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, signal: Signal) -> None:
        """Count one signal."""
        type = (signal.type or "",)
        counted = _COUNTED.get(signal.name)
        if counted is not None:
            self._recorder.add(counted, type)
        if signal.state is not None and signal.state.is_end:
            self._recorder.add(prometheus.RUNS_ENDED, (*type, signal.state.value))
            self._measure(prometheus.RUN_DURATION, (*type, signal.state.value), signal)
        elif signal.name == "run.claimed":
            self._measure(prometheus.CLAIM_LATENCY, type, signal)
        elif signal.location is not None:
            self._measure(prometheus.STEP_DURATION, (*type, signal.name.removeprefix("step.")), signal)
        elif signal.name == "worker.flushed":
            self._recorder.observe(prometheus.FLUSH_RUNS, (), signal.count or 0)
            self._measure(prometheus.FLUSH_DURATION, (), signal)

    def _measure(self, metric: Metric, labels: tuple[str, ...], signal: Signal) -> None:
        if signal.seconds is not None:
            self._recorder.observe(metric, labels, signal.seconds)


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
        self._queues = GaugeReading(self._measure_queues, now)

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

    async def _measure_queues(self) -> list[Sample]:
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
            task = self._task = loop.create_task(self._read())
        if task is not None:
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        if self._error is not None:
            raise self._error
        return self._last

    async def _read(self) -> None:
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
            (prometheus.HOOKS_DROPPED, (), self._hooks.dropped),
            (prometheus.HOOK_ERRORS, (), self._hooks.errors),
        ]
        for worker in self._workers():
            samples.append((prometheus.HELD_RUNS, (worker.name,), worker.held_count))
            samples.append((prometheus.WORKER_SLOTS, (worker.name,), worker.slots))
        if may_open or self._is_open():
            samples += await self._store_gauges.samples()
        return samples
