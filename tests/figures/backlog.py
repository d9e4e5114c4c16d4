"""Latency of started runs behind a backlog of new ones, and the effect of many types on a message."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, Registry
from holdfast.testing.patience import until
from tests.figures.series import report
from tests.figures.stores import STORES, url_of

STEP_SECONDS = 0.02
SLOTS = 5
TIMES = 7
MESSAGES = 40
LIMIT_SECONDS = 0.15
MANY_TYPES = 1_000
HOLDERS = 4
MOST_TIMES_SLOWER = 2.0

app = Registry()


@app.step
async def work() -> None:
    await asyncio.sleep(STEP_SECONDS)


@app.workflow("figure.job")
async def job(ctx: Context) -> None:
    await work()


@app.workflow("figure.waiting")
async def waiting(ctx: Context) -> float:
    await ctx.receive("go")
    return time.monotonic()


@app.workflow("figure.parent")
async def parent(ctx: Context) -> float:
    """Return the total duration of its two children."""
    await ctx.receive("go")
    begun = await ctx.step("begin", time.monotonic)
    await ctx.call(job)
    await ctx.call(job)
    return await ctx.step("end", time.monotonic) - begun


@app.workflow("figure.limited")
async def limited(ctx: Context) -> float:
    if await ctx.receive("go") == "wait":
        return time.monotonic()
    await work()
    return 0.0


@asynccontextmanager
async def opened(store: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Holdfast]:
    hf = Holdfast(url_of(store, folder, request))
    hf.include(app)
    async with hf:
        yield hf


async def asleep(hf: Holdfast, type: str, count: int) -> None:
    """Wait until this many runs of a type are suspended."""

    async def are_asleep() -> bool:
        return len([run async for run in hf.list(type=type, state="suspended", limit=count)]) == count

    await until(f"{count} runs of {type} are suspended", are_asleep)


@pytest.mark.parametrize("store", STORES)
async def test_a_waiting_run_answers_behind_a_thousand_starts(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    took: list[float] = []
    async with opened(store, tmp_path, request) as hf, hf.worker(concurrency=SLOTS):
        runs = await hf.start_many(waiting, [()] * TIMES)
        await asleep(hf, waiting.type, TIMES)
        await hf.start_many(job, [()] * 1_000)
        for run in runs:
            await asyncio.sleep(5 * STEP_SECONDS)
            begun = time.monotonic()
            await run.send("go")
            took.append(await run.result() - begun)

    report("message to a run behind 1,000 starts", took, unit="ms")
    assert statistics.median(took) <= LIMIT_SECONDS


@pytest.mark.parametrize("store", STORES)
async def test_a_parent_with_two_children_answers_behind_500_starts(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    took: list[float] = []
    async with opened(store, tmp_path, request) as hf, hf.worker(concurrency=SLOTS):
        runs = await hf.start_many(parent, [()] * TIMES)
        await asleep(hf, parent.type, TIMES)
        await hf.start_many(job, [()] * 500)
        for run in runs:
            await run.send("go")
            took.append(await run.result())

    report("two children behind 500 starts", took, unit="ms")
    assert statistics.median(took) <= LIMIT_SECONDS


@pytest.mark.parametrize("store", STORES)
async def test_a_run_of_a_limited_type_answers_behind_500_that_are_parked(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    took: list[float] = []
    async with opened(store, tmp_path, request) as hf, hf.worker(concurrency=2 * SLOTS):
        runs = await hf.start_many(limited, [()] * TIMES)
        await asleep(hf, limited.type, TIMES)
        await hf.types.set(limited.type, concurrency=SLOTS)
        others = await hf.start_many(limited, [()] * 500)
        for other in others:
            await other.send("go", "work")
        for run in runs:
            await asyncio.sleep(5 * STEP_SECONDS)
            begun = time.monotonic()
            await run.send("go", "wait")
            took.append(await run.result() - begun)

    report("message to a run behind 500 parked ones", took, unit="ms")
    assert statistics.median(took) <= LIMIT_SECONDS


@pytest.mark.parametrize("store", STORES)
async def test_a_message_does_not_take_longer_with_many_types(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    many = Registry()
    for number in range(MANY_TYPES):

        @many.workflow(f"many.{number:04}")
        async def other(ctx: Context) -> None:
            await ctx.receive("go")

    @many.workflow("figure.held")
    async def held(ctx: Context) -> None:
        await ctx.step("hold", asyncio.sleep, 3_600)

    few: list[float] = []
    crowded: list[float] = []
    async with opened(store, tmp_path, request) as hf, AsyncExitStack() as stack:
        await _send(hf, [waiting.type], few)
        hf.include(many)
        await hf.start_many(held, [()] * HOLDERS)
        for _ in range(HOLDERS):
            await stack.enter_async_context(hf.worker([held.type], concurrency=1, grace_seconds=0))
        await _send(hf, [waiting.type, "many.*"], crowded)

    ratio = statistics.median(crowded) / statistics.median(few)
    report("message to end with one type", few, unit="ms")
    report(f"{ratio:.1f} x that with {MANY_TYPES:,} types and {HOLDERS} workers that hold runs:", crowded, unit="ms")
    assert ratio <= MOST_TIMES_SLOWER


async def _send(hf: Holdfast, types: list[str], took: list[float]) -> None:
    """Send messages to waiting runs, one after the other, beside a worker for some types."""
    async with hf.worker(types, concurrency=SLOTS):
        runs = await hf.start_many(waiting, [()] * MESSAGES)
        await asleep(hf, waiting.type, MESSAGES)
        for run in runs:
            begun = time.monotonic()
            await run.send("go")
            await run.result()
            took.append(time.monotonic() - begun)
