"""Delay of a run after a sleep that was long enough for its worker to drop it from memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, Registry
from tests.figures.series import MILLISECOND, report
from tests.figures.stores import url_of

TIMERS = 100
FIRST = timedelta(seconds=2)
"""Longer than a worker keeps a sleeping run in memory."""
APART = timedelta(milliseconds=20)
LIMITS_SECONDS = {"sqlite": 5 * MILLISECOND, "postgres": 8 * MILLISECOND, "redis": 8 * MILLISECOND}

timers = Registry()


@timers.step
async def clock() -> float:
    return time.time()


@timers.workflow
async def sleeper(ctx: Context, until: datetime) -> float:
    """Return how late the first step after the sleep starts, in seconds."""
    await ctx.sleep_until(until)
    return await clock() - until.timestamp()


@pytest.mark.parametrize("store", LIMITS_SECONDS)
async def test_a_sleeping_run_continues_in_time(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    hf = Holdfast(url_of(store, tmp_path, request))
    hf.include(timers)
    async with hf, hf.worker(concurrency=2 * TIMERS):
        first = datetime.now(UTC) + FIRST
        runs = await hf.start_many(sleeper, [(first + APART * number,) for number in range(TIMERS)])
        late = await asyncio.gather(*(run.result() for run in runs))

    report(f"{TIMERS} timers: late by", late, unit="ms")
    assert statistics.median(late) <= LIMITS_SECONDS[store]
