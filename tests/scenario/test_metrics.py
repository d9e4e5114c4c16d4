"""Metrics: counters that grow while runs live, and gauges read from the store."""

from __future__ import annotations

import re

import pytest

from holdfast import Context, Fatal, Registry, Retry, RunFailed
from holdfast.testing.harness import Harness
from tests.stage import Stage


def app() -> Registry:
    found = Registry()

    @found.workflow("order.v1")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", lambda: "paid")
        await ctx.receive("parcel")

    @found.task("mail.v1", retry=Retry(max_attempts=2, initial=1, jitter=0))
    async def mail(to: str) -> None:
        raise ConnectionError(to) if to == "flaky" else Fatal(to)

    return found


async def numbers(h: Harness) -> dict[str, float]:
    """Return every series except the buckets of histograms."""
    text = await h.metrics.text()
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#") and "_bucket" not in line]
    return {re.sub(r'worker="[^"]*"', 'worker="w"', name): float(value) for name, value in pairs}


@pytest.mark.every_store
async def test_runs_and_steps_are_counted_by_type(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        await h.metrics.text()  # start counting now
        run = await h.start("order.v1")
        await h.settle()
        await run.send("parcel")
        await run.result()
        for to in ("flaky", "nobody"):
            with pytest.raises(RunFailed):
                await h.execute("mail.v1", {"to": to})
        await h.settle()
        told = await numbers(h)

    assert told['holdfast_runs_started_total{type="order.v1"}'] == 1
    assert told['holdfast_runs_started_total{type="mail.v1"}'] == 2
    assert told['holdfast_runs_claimed_total{type="order.v1"}'] == 2
    assert told['holdfast_runs_suspended_total{type="order.v1"}'] == 1
    assert told['holdfast_runs_ended_total{type="order.v1",state="succeeded"}'] == 1
    assert told['holdfast_runs_ended_total{type="mail.v1",state="failed"}'] == 2
    assert told['holdfast_run_duration_seconds_count{type="mail.v1",state="failed"}'] == 2
    assert told['holdfast_claim_latency_seconds_count{type="order.v1"}'] == 2
    assert told['holdfast_step_duration_seconds_count{type="order.v1",outcome="succeeded"}'] == 1
    assert told['holdfast_step_duration_seconds_count{type="mail.v1",outcome="retried"}'] == 1
    assert told['holdfast_step_failures_total{type="mail.v1"}'] == 2
    assert told['holdfast_step_retries_total{type="mail.v1"}'] == 1
    assert told["holdfast_flush_runs_count"] == told["holdfast_flush_duration_seconds_count"] >= 4
    assert told['holdfast_held_runs{worker="w"}'] == 0
    assert told['holdfast_worker_slots{worker="w"}'] == 200


async def test_the_store_reports_the_number_of_runs_and_the_waiting_ones(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        await h.start("order.v1")
        await h.settle()
        await h.start_many("unknown.v1", [{}, {}])
        await h.start("unknown.v1", delay=3600)
        h.clock.pass_to(h.clock.now() + 5_000_000)
        told = await numbers(h)

    assert told["holdfast_store_up"] == 1
    assert told['holdfast_runs{type="order.v1",state="suspended"}'] == 1
    assert told['holdfast_runs{type="unknown.v1",state="pending"}'] == 3
    assert told['holdfast_queue_depth{type="unknown.v1"}'] == 2
    assert told['holdfast_queue_oldest_seconds{type="unknown.v1"}'] == 5
    assert told['holdfast_unhandled_runs{type="unknown.v1"}'] == 2
    assert not [name for name in told if name.startswith("holdfast_queue") and "order.v1" in name]


async def test_a_run_for_a_living_worker_waits_but_is_not_unhandled(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        await h.start("order.v1", delay=1)
        await h.settle()
        h.clock.pass_to(h.clock.now() + 2_000_000)  # no hint is sent, so the worker does not claim it yet
        told = await numbers(h)

    assert told['holdfast_queue_depth{type="order.v1"}'] == 1
    assert 'holdfast_unhandled_runs{type="order.v1"}' not in told


async def test_metrics_can_be_read_before_anything_else(stage: Stage) -> None:
    h = stage.harness(app())
    try:
        assert (await numbers(h))["holdfast_store_up"] == 1
    finally:
        await h.close()
