"""Definitions: every metric, with its kind, its labels and its meaning."""

from __future__ import annotations

from typing import Literal

import msgspec

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
