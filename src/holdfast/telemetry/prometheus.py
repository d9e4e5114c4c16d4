"""Metrics in the Prometheus text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from operator import add

from holdfast.telemetry.definitions import METRICS, Metric

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
