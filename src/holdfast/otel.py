"""OpenTelemetry: spans from a start to the run, its steps and its children, and the metrics under their usual names.

    from holdfast.otel import instrument

    instrument(hf)

Needs `holdfast[otel]`, and an SDK of your choice that exports the data. Without an SDK nothing happens. A span never
contains payloads, results or the text of an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from holdfast.app import Holdfast, session_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.location import without_iterations
from holdfast.core.news import Signal
from holdfast.telemetry.metrics import METRICS, PATTERNS, Counters, Metric, Metrics, Sample

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "OpenTelemetry is not installed; run pip install 'holdfast[otel]'", name=error.name
    ) from error

__all__ = ["instrument"]

_LEAVING = frozenset(
    f"run.{how}"
    for how in (
        "suspended",
        "continued",
        "released",
        "lost",
        "blocked",
        "rolling_back",
        "succeeded",
        "failed",
        "cancelled",
        "paused",
    )
)
_ERRORS = frozenset({"run.failed", "run.blocked", "step.failed", "step.retried"})


def instrument(
    hf: Holdfast,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Callable[[], None]:
    """Emit spans and metrics for a `Holdfast` object, by default with the global providers.

    Returns a function that removes the instrumentation.
    """
    if session_of(hf).signals.tracing is not None:
        raise InvalidRequest(f"{hf!r} is already instrumented")
    spans = Spans(trace.get_tracer("holdfast", tracer_provider=tracer_provider))
    numbers = Numbers(metrics.get_meter("holdfast", meter_provider=meter_provider), hf.metrics)
    session_of(hf).signals.tracing = spans
    untaps = (
        session_of(hf).signals.tap(spans, "run.*", "step.*", "worker.stopped"),
        session_of(hf).signals.tap(Counters(numbers), *PATTERNS),
        session_of(hf).signals.tap(numbers.read_soon, "run.started", "worker.started"),
    )

    def uninstrument() -> None:
        session_of(hf).signals.tracing = None
        for untap in untaps:
            untap()
        spans.end_all()

    return uninstrument


class Spans:
    """Spans of the runs that this process holds, and of their steps: one per turn, and one per attempt at a step."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._turns: dict[str, tuple[str | None, trace.Span]] = {}
        self._steps: dict[str, dict[str, trace.Span]] = {}

    # Trace propagation

    def of_start(self, type: str, run_id: str) -> str | None:
        """Record a start in the caller's trace, and return the `traceparent` that the run continues."""
        about = {"holdfast.run_id": run_id, "holdfast.type": type}
        span = self._tracer.start_span(f"start {type}", kind=trace.SpanKind.PRODUCER, attributes=about)
        span.end()
        return _traceparent(span)

    def of_run(self, run_id: str) -> str | None:
        turn = self._turns.get(run_id)
        return None if turn is None else _traceparent(turn[1])

    # Signals

    def __call__(self, signal: Signal) -> None:
        """Start or end a span."""
        if signal.name == "run.claimed":
            self._begin_turn(signal)
        elif signal.name == "step.started":
            self._begin_step(signal)
        elif signal.name == "worker.stopped":
            for run_id in [run_id for run_id, (worker, _) in self._turns.items() if worker == signal.worker]:
                self._end_turn(run_id, None)
        elif signal.location is not None:
            span = self._steps.get(signal.run_id or "", {}).pop(signal.location, None)
            if span is not None:
                _end(span, signal)
        elif signal.name in _LEAVING and signal.worker is not None:  # without a worker, a person did it from outside
            self._end_turn(signal.run_id or "", signal)

    def end_all(self) -> None:
        """End all open spans."""
        for run_id in list(self._turns):
            self._end_turn(run_id, None)

    def _begin_turn(self, signal: Signal) -> None:
        run_id = signal.run_id or ""
        self._end_turn(run_id, None)
        span = self._tracer.start_span(
            f"run {signal.type}",
            context=_context_of(signal.trace, run_id),
            kind=trace.SpanKind.CONSUMER,
            attributes=_about(signal),
        )
        self._turns[run_id] = signal.worker, span

    def _begin_step(self, signal: Signal) -> None:
        """Start the span of an attempt. Runs in the context of the step's body, so that its spans become children."""
        run_id, location = signal.run_id or "", signal.location or ""
        turn = self._turns.get(run_id)
        outer = trace.set_span_in_context(turn[1], contexts.Context()) if turn else _context_of(signal.trace, run_id)
        # Without iteration numbers, so that all spans of one step have the same name.
        name = f"{signal.kind} {without_iterations(location)}"
        span = self._tracer.start_span(name, context=outer, attributes=_about(signal))
        self._steps.setdefault(run_id, {})[location] = span
        contexts.attach(trace.set_span_in_context(span, contexts.Context()))

    def _end_turn(self, run_id: str, signal: Signal | None) -> None:
        for abandoned in self._steps.pop(run_id, {}).values():
            abandoned.set_attributes({"holdfast.abandoned": True})
            abandoned.end()
        _, span = self._turns.pop(run_id, (None, None))
        if span is not None:
            _end(span, signal)


def _end(span: trace.Span, signal: Signal | None) -> None:
    if signal is not None:
        span.set_attributes(_about(signal))
        if signal.name in _ERRORS:
            span.set_attribute("error.type", signal.error or "")
            span.set_status(trace.StatusCode.ERROR, signal.error)
    span.end()


def _about(signal: Signal) -> dict[str, str | int | float]:
    about = {
        "run_id": signal.run_id,
        "type": signal.type,
        "location": signal.location,
        "attempt": signal.attempt,
        "worker": signal.worker,
        "parent_id": signal.parent_id,
        "state": None if signal.state is None else signal.state.value,
        "seconds": signal.seconds,
    }
    return {f"holdfast.{name}": value for name, value in about.items() if value is not None}


def _traceparent(span: trace.Span) -> str | None:
    about = span.get_span_context()
    if not about.is_valid:
        return None
    return f"00-{about.trace_id:032x}-{about.span_id:016x}-{about.trace_flags:02x}"


def _context_of(traceparent: str | None, run_id: str) -> contexts.Context:
    """Return the trace that a run continues. Without one, derive a trace from the run id, the same for all turns."""
    if traceparent is not None:
        found = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, contexts.Context())
        if trace.get_current_span(found).get_span_context().is_valid:
            return found
    digest = blake2b(run_id.encode(), digest_size=24).digest()
    about = trace.SpanContext(
        trace_id=int.from_bytes(digest[:16]) or 1,
        span_id=int.from_bytes(digest[16:]) or 1,
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(about), contexts.Context())


class Numbers:
    """The metrics as OpenTelemetry instruments. Gauges show the values that were read at the previous export."""

    def __init__(self, meter: metrics.Meter, source: Metrics) -> None:
        self._source = source
        self._samples: Sequence[Sample] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: asyncio.Task[None] | None = None
        self._counters: dict[Metric, metrics.Counter] = {}
        self._histograms: dict[Metric, metrics.Histogram] = {}
        for metric in METRICS:
            self._make(meter, metric)

    def _make(self, meter: metrics.Meter, metric: Metric) -> None:
        about: dict[str, Any] = {"description": metric.help, "unit": "s" if "_seconds" in metric.name else ""}
        if metric.kind == "histogram":
            about["explicit_bucket_boundaries_advisory"] = metric.buckets
            self._histograms[metric] = meter.create_histogram(metric.name, **about)
        elif metric.kind == "gauge":
            meter.create_observable_gauge(metric.name, [lambda _: self._observed(metric)], **about)
        elif not metric.labels:  # the counters of hooks, which hooks keep themselves
            meter.create_observable_counter(metric.name, [lambda _: self._observed(metric)], **about)
        else:
            self._counters[metric] = meter.create_counter(metric.name, **about)

    def add(self, metric: Metric, labels: tuple[str, ...], amount: int = 1) -> None:
        self._counters[metric].add(amount, dict(zip(metric.labels, labels, strict=True)))

    def observe(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self._histograms[metric].record(value, dict(zip(metric.labels, labels, strict=True)))

    def _observed(self, metric: Metric) -> Iterable[metrics.Observation]:
        """Return the last values to an exporter, in any thread, and start the next reading.

        An exporter must not wait for the store, so it gets the values of the previous reading.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.read_soon)
        return [
            metrics.Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for one, labels, value in self._samples
            if one is metric
        ]

    def read_soon(self, signal: Signal | None = None) -> None:
        """Start reading the gauges, unless a reading is under way. The first signals determine the event loop."""
        loop = asyncio.get_running_loop()
        if signal is not None and self._loop is loop:
            return
        self._loop = loop
        if self._reading is None or self._reading.done():
            self._reading = loop.create_task(self._read())

    async def _read(self) -> None:
        self._samples = await self._source.samples(may_open=False)
