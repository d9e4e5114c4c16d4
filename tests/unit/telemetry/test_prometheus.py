"""The text format of Prometheus, as a scraper reads it."""

from __future__ import annotations

import pytest

from holdfast.telemetry import metrics
from holdfast.telemetry.metrics import (
    FLUSH_RUNS,
    HOOK_ERRORS,
    METRICS,
    QUEUE_AGE,
    QUEUE_DEPTH,
    RUNS_STARTED,
    STEP_DURATION,
    PrometheusText,
)


def lines(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(name)]


def test_every_metric_has_its_help_and_type_once_and_before_its_values() -> None:
    kept = PrometheusText()
    kept.add(RUNS_STARTED, ("shop.v1",))

    text = kept.text()

    assert text.endswith("\n")
    for metric in METRICS:
        about = [line for line in text.splitlines() if metric.name in line.split(" ")]
        assert about[:2] == [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
    assert (
        "\n".join(
            [
                f"# TYPE {RUNS_STARTED.name} counter",
                'holdfast_runs_started_total{type="shop.v1"} 1',
            ]
        )
        in text
    )


def test_names_follow_the_conventions_of_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("holdfast_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert list(metric.buckets) == sorted(metric.buckets)


def test_labels_are_escaped() -> None:
    kept = PrometheusText()
    kept.add(RUNS_STARTED, ('a"b\\c\nd',))

    assert lines(kept.text(), RUNS_STARTED.name) == [r'holdfast_runs_started_total{type="a\"b\\c\nd"} 1']


def test_a_histogram_is_cumulative_and_includes_its_bounds() -> None:
    kept = PrometheusText()
    for size in (1, 2, 3, 501):
        kept.observe(FLUSH_RUNS, (), size)

    assert lines(kept.text(), "holdfast_flush_runs") == [
        'holdfast_flush_runs_bucket{le="1"} 1',
        'holdfast_flush_runs_bucket{le="2"} 2',
        'holdfast_flush_runs_bucket{le="5"} 3',
        'holdfast_flush_runs_bucket{le="10"} 3',
        'holdfast_flush_runs_bucket{le="20"} 3',
        'holdfast_flush_runs_bucket{le="50"} 3',
        'holdfast_flush_runs_bucket{le="100"} 3',
        'holdfast_flush_runs_bucket{le="200"} 3',
        'holdfast_flush_runs_bucket{le="500"} 3',
        'holdfast_flush_runs_bucket{le="+Inf"} 4',
        "holdfast_flush_runs_sum 507",
        "holdfast_flush_runs_count 4",
    ]


def test_a_histogram_with_labels_names_them_in_every_line() -> None:
    kept = PrometheusText()
    kept.observe(STEP_DURATION, ("shop.v1", "failed"), 0.3)

    found = lines(kept.text(), STEP_DURATION.name)
    assert found[0] == 'holdfast_step_duration_seconds_bucket{type="shop.v1",outcome="failed",le="0.001"} 0'
    assert found[-2:] == [
        'holdfast_step_duration_seconds_sum{type="shop.v1",outcome="failed"} 0.3',
        'holdfast_step_duration_seconds_count{type="shop.v1",outcome="failed"} 1',
    ]


def test_gauges_are_printed_as_they_were_read() -> None:
    text = PrometheusText().text([(QUEUE_DEPTH, ("shop.v1",), 3)])

    assert lines(text, QUEUE_DEPTH.name) == ['holdfast_queue_depth{type="shop.v1"} 3']
    assert lines(text, HOOK_ERRORS.name) == ["holdfast_hook_errors_total 0"]


def test_unlimited_types_do_not_make_unlimited_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_LIMIT", 2)
    kept = PrometheusText()
    for number in range(5):
        kept.add(RUNS_STARTED, (f"type.{number}",))
        kept.observe(STEP_DURATION, (f"type.{number}", "failed"), 1)

    text = kept.text()

    assert lines(text, RUNS_STARTED.name) == [
        'holdfast_runs_started_total{type="type.0"} 1',
        'holdfast_runs_started_total{type="type.1"} 1',
        'holdfast_runs_started_total{type="other"} 3',
    ]
    assert 'holdfast_step_duration_seconds_count{type="other",outcome="other"} 3' in text


def test_gauges_of_types_beyond_the_limit_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_LIMIT", 1)
    samples = [(QUEUE_DEPTH, (f"type.{number}",), number) for number in range(1, 5)]
    ages = [(QUEUE_AGE, (f"type.{number}",), 10 - number) for number in range(1, 5)]

    text = PrometheusText().text([*samples, *ages])

    assert lines(text, QUEUE_DEPTH.name) == [
        'holdfast_queue_depth{type="type.1"} 1',
        'holdfast_queue_depth{type="other"} 9',
    ]
    assert 'holdfast_queue_oldest_seconds{type="other"} 8' in text
