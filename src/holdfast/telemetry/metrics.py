"""Metrics of a process and of the store: their definitions, counters and gauges, and the Prometheus format."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import Literal, Protocol

import msgspec

from holdfast.core.clock import SECOND
from holdfast.core.errors import StoreUnavailable
from holdfast.core.news import Signal, Signals
from holdfast.core.ports import Store
from holdfast.core.questions import CountReady, CountRuns
from holdfast.engine.explain import alive, is_handled
from holdfast.telemetry.hooks import Hooks

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LONG = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0, 2_592_000.0)
_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


class Metric(msgspec.Struct, frozen=True):
    """A metric: a counter, a histogram, or a gauge that is read on demand."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# The work of this process since it began to count.

RUNS_STARTED = Metric("holdfast_runs_started_total", "counter", "Runs created by this process.", ("type",))
RUNS_CLAIMED = Metric("holdfast_runs_claimed_total", "counter", "Runs claimed by workers of this process.", ("type",))
RUNS_SUSPENDED = Metric(
    "holdfast_runs_suspended_total", "counter", "Runs that workers of this process suspended to wait.", ("type",)
)
RUNS_BLOCKED = Metric("holdfast_runs_blocked_total", "counter", "Times that a run became blocked.", ("type",))
RUNS_ENDED = Metric("holdfast_runs_ended_total", "counter", "Runs that this process ended.", ("type", "state"))
RUN_DURATION = Metric(
    "holdfast_run_duration_seconds",
    "histogram",
    "Time from the creation of a run to its end, including waits.",
    ("type", "state"),
    _LONG,
)
CLAIM_LATENCY = Metric(
    "holdfast_claim_latency_seconds",
    "histogram",
    "Time that a run was ready before a worker claimed it, where known.",
    ("type",),
    _SHORT,
)
STEP_DURATION = Metric(
    "holdfast_step_duration_seconds",
    "histogram",
    "Duration of an attempt at a step, by its outcome: succeeded, failed or retried.",
    ("type", "outcome"),
    _SHORT,
)
STEP_FAILURES = Metric("holdfast_step_failures_total", "counter", "Steps that failed permanently.", ("type",))
STEP_RETRIES = Metric("holdfast_step_retries_total", "counter", "Attempts that failed and are retried.", ("type",))
LEASES_LOST = Metric(
    "holdfast_leases_lost_total", "counter", "Runs that a worker of this process lost while it held them.", ("type",)
)
FLUSH_RUNS = Metric("holdfast_flush_runs", "histogram", "Runs written by one commit of a worker.", (), _COUNTS)
FLUSH_DURATION = Metric(
    "holdfast_flush_duration_seconds", "histogram", "Duration of one commit of a worker.", (), _SHORT
)

# The current state of this process.

HELD_RUNS = Metric("holdfast_held_runs", "gauge", "Runs that a worker of this process holds.", ("worker",))
WORKER_SLOTS = Metric(
    "holdfast_worker_slots", "gauge", "Maximum number of runs that a worker of this process holds.", ("worker",)
)
HOOKS_DROPPED = Metric("holdfast_hook_signals_dropped_total", "counter", "Signals dropped because a hook was too slow.")
HOOK_ERRORS = Metric("holdfast_hook_errors_total", "counter", "Hook calls that failed.")

# The current state of the store: the same from every process.

STORE_UP = Metric("holdfast_store_up", "gauge", "1 if the store answered, otherwise 0.")
RUNS = Metric("holdfast_runs", "gauge", "Runs in the store, by type and state.", ("type", "state"))
QUEUE_DEPTH = Metric("holdfast_queue_depth", "gauge", "Ready runs that no worker holds.", ("type",))
QUEUE_AGE = Metric("holdfast_queue_oldest_seconds", "gauge", "Time since the oldest ready run became ready.", ("type",))
UNHANDLED = Metric("holdfast_unhandled_runs", "gauge", "Ready runs of a type that no live worker serves.", ("type",))

METRICS = tuple(metric for metric in globals().values() if isinstance(metric, Metric))


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SERIES_LIMIT = 1_000
"""Maximum number of series per metric. All further ones share a series whose labels are `other`.

The limit is needed because any producer can invent types.
"""

Sample = tuple[Metric, tuple[str, ...], float]
"""A value read on demand: its metric, its label values, and the value."""


class Histogram:
    """Counts of observations by size. An observation counts in the first bucket whose bound it does not exceed."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class PrometheusText:
    """Keeps counters and histograms, and renders them together with values read on demand."""

    def __init__(self) -> None:
        self._counters: dict[Metric, dict[tuple[str, ...], int]] = {}
        self._histograms: dict[Metric, dict[tuple[str, ...], Histogram]] = {}

    def add(self, metric: Metric, labels: tuple[str, ...], amount: int = 1) -> None:
        series = self._counters.setdefault(metric, {})
        labels = _within_limit(series, labels)
        series[labels] = series.get(labels, 0) + amount

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        series = self._histograms.setdefault(metric, {})
        labels = _within_limit(series, labels)
        histogram = series.get(labels)
        if histogram is None:
            histogram = series[labels] = Histogram(metric.buckets)
        histogram.observe(value)

    def text(self, samples: Iterable[Sample] = ()) -> str:
        """Render all metrics. A metric without values still gets its HELP and TYPE lines."""
        looked_up: dict[Metric, dict[tuple[str, ...], float]] = {}
        for metric, labels, value in samples:
            series = looked_up.setdefault(metric, {})
            within = _within_limit(series, labels)
            # Series joined under `other`: the sum of counts, or the maximum of times.
            together = max if metric.name.endswith("_seconds") else add
            series[within] = together(series[within], value) if within in series else value
        lines: list[str] = []
        for metric in METRICS:
            lines += [f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} {metric.kind}"]
            values = {**self._counters.get(metric, {}), **looked_up.get(metric, {})}
            if metric.kind == "counter" and not metric.labels:
                values = {(): 0, **values}
            lines += [f"{metric.name}{_labels(metric.labels, key)} {_number(value)}" for key, value in values.items()]
            for key, histogram in self._histograms.get(metric, {}).items():
                lines += _histogram_lines(metric, key, histogram)
        return "\n".join(lines) + "\n"


def _within_limit(series: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    if labels in series or len(series) < SERIES_LIMIT:
        return labels
    return ("other",) * len(labels)


def _histogram_lines(metric: Metric, labels: tuple[str, ...], histogram: Histogram) -> Iterator[str]:
    bounds = [*map(_number, histogram.bounds), "+Inf"]
    count = 0
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        yield f"{metric.name}_bucket{_labels((*metric.labels, 'le'), (*labels, bound))} {count}"
    yield f"{metric.name}_sum{_labels(metric.labels, labels)} {_number(histogram.total)}"
    yield f"{metric.name}_count{_labels(metric.labels, labels)} {count}"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_quoted(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


# The counters of this process, and gauges of its workers, its hooks and the store

PATTERNS = ("run.*", "step.succeeded", "step.failed", "step.retried", "worker.flushed")

_COUNTED = {
    "run.started": RUNS_STARTED,
    "run.claimed": RUNS_CLAIMED,
    "run.suspended": RUNS_SUSPENDED,
    "run.blocked": RUNS_BLOCKED,
    "run.lost": LEASES_LOST,
    "step.failed": STEP_FAILURES,
    "step.retried": STEP_RETRIES,
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
            self._recorder.add(RUNS_ENDED, (*type, signal.state.value))
            self._measure(RUN_DURATION, (*type, signal.state.value), signal)
        elif signal.name == "run.claimed":
            self._measure(CLAIM_LATENCY, type, signal)
        elif signal.location is not None:
            self._measure(STEP_DURATION, (*type, signal.name.removeprefix("step.")), signal)
        elif signal.name == "worker.flushed":
            self._recorder.observe(FLUSH_RUNS, (), signal.count or 0)
            self._measure(FLUSH_DURATION, (), signal)

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
            (HOOKS_DROPPED, (), self._hooks.dropped),
            (HOOK_ERRORS, (), self._hooks.errors),
        ]
        for worker in self._workers():
            samples.append((HELD_RUNS, (worker.name,), worker.held_count))
            samples.append((WORKER_SLOTS, (worker.name,), worker.slots))
        if may_open or self._is_open():
            samples += await self._store_gauges.samples()
        return samples
