"""Counters: turn signals into counts and measurements for a recorder of metrics."""

from __future__ import annotations

from typing import Protocol

from holdfast.core.signals import Signal
from holdfast.telemetry import definitions
from holdfast.telemetry.definitions import Metric

PATTERNS = ("run.*", "step.succeeded", "step.failed", "step.retried", "worker.flushed")

_COUNTED = {
    "run.started": definitions.RUNS_STARTED,
    "run.claimed": definitions.RUNS_CLAIMED,
    "run.suspended": definitions.RUNS_SUSPENDED,
    "run.blocked": definitions.RUNS_BLOCKED,
    "run.lost": definitions.LEASES_LOST,
    "step.failed": definitions.STEP_FAILURES,
    "step.retried": definitions.STEP_RETRIES,
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
            self._recorder.add(definitions.RUNS_ENDED, (*type, signal.state.value))
            self._measure(definitions.RUN_DURATION, (*type, signal.state.value), signal)
        elif signal.name == "run.claimed":
            self._measure(definitions.CLAIM_LATENCY, type, signal)
        elif signal.location is not None:
            self._measure(definitions.STEP_DURATION, (*type, signal.name.removeprefix("step.")), signal)
        elif signal.name == "worker.flushed":
            self._recorder.observe(definitions.FLUSH_RUNS, (), signal.count or 0)
            self._measure(definitions.FLUSH_DURATION, (), signal)

    def _measure(self, metric: Metric, labels: tuple[str, ...], signal: Signal) -> None:
        if signal.seconds is not None:
            self._recorder.observe(metric, labels, signal.seconds)
