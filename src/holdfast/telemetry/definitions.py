"""Definitions: every metric, with its kind, its labels and what it means."""

from __future__ import annotations

from typing import Literal

import msgspec

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LONG = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0, 2_592_000.0)
_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


class Metric(msgspec.Struct, frozen=True):
    """Something that is counted, measured, or looked up when somebody asks."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# What this process did, since it began to count.

RUNS_STARTED = Metric("holdfast_runs_started_total", "counter", "Runs created by this process.", ("type",))
RUNS_CLAIMED = Metric("holdfast_runs_claimed_total", "counter", "Runs taken by workers of this process.", ("type",))
RUNS_SUSPENDED = Metric(
    "holdfast_runs_suspended_total", "counter", "Runs that workers of this process let go because they wait.", ("type",)
)
RUNS_BLOCKED = Metric(
    "holdfast_runs_blocked_total", "counter", "Times that a run could not go on by itself.", ("type",)
)
RUNS_ENDED = Metric("holdfast_runs_ended_total", "counter", "Runs that this process ended.", ("type", "state"))
RUN_DURATION = Metric(
    "holdfast_run_duration_seconds",
    "histogram",
    "From the creation of a run to its end, waiting included.",
    ("type", "state"),
    _LONG,
)
CLAIM_LATENCY = Metric(
    "holdfast_claim_latency_seconds",
    "histogram",
    "How long a run was ready before a worker took it, where that is known.",
    ("type",),
    _SHORT,
)
STEP_DURATION = Metric(
    "holdfast_step_duration_seconds",
    "histogram",
    "How long an attempt at a step took, by its outcome: succeeded, failed or retried.",
    ("type", "outcome"),
    _SHORT,
)
STEP_FAILURES = Metric("holdfast_step_failures_total", "counter", "Steps that failed for good.", ("type",))
STEP_RETRIES = Metric("holdfast_step_retries_total", "counter", "Attempts that failed and are repeated.", ("type",))
LEASES_LOST = Metric(
    "holdfast_leases_lost_total", "counter", "Runs that a worker of this process lost while it held them.", ("type",)
)
FLUSH_RUNS = Metric("holdfast_flush_runs", "histogram", "Runs written by one commit of a worker.", (), _COUNTS)
FLUSH_DURATION = Metric(
    "holdfast_flush_duration_seconds", "histogram", "How long one commit of a worker took.", (), _SHORT
)

# How this process stands.

HELD_RUNS = Metric("holdfast_held_runs", "gauge", "Runs that a worker of this process holds.", ("worker",))
WORKER_SLOTS = Metric("holdfast_worker_slots", "gauge", "Runs that a worker of this process may hold.", ("worker",))
HOOKS_DROPPED = Metric("holdfast_hook_signals_dropped_total", "counter", "Signals that a hook was too slow for.")
HOOK_ERRORS = Metric("holdfast_hook_errors_total", "counter", "Calls of hooks that failed.")

# How the store stands: the same whichever process is asked.

STORE_UP = Metric("holdfast_store_up", "gauge", "Whether the store answered.")
RUNS = Metric("holdfast_runs", "gauge", "Runs in the store, by type and state.", ("type", "state"))
QUEUE_DEPTH = Metric("holdfast_queue_depth", "gauge", "Runs that are ready and that nobody holds.", ("type",))
QUEUE_AGE = Metric("holdfast_queue_oldest_seconds", "gauge", "How long the oldest ready run has been so.", ("type",))
UNHANDLED = Metric("holdfast_unhandled_runs", "gauge", "Ready runs of a type that no living worker has.", ("type",))

METRICS = tuple(metric for metric in globals().values() if isinstance(metric, Metric))
