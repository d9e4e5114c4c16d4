"""Durable steps per second on Redis, as a share of those on the memory store of the same process."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from holdfast import Context, Holdfast, Registry
from tests.redis import RedisServer

RUNS = 600
STEPS = 5
CONCURRENCY = 500
ROUNDS = 7
LEAST_SHARE = 0.7

app = Registry()


@app.step
async def count_up(number: int) -> int:
    return number + 1


@app.workflow("figure.five")
async def five(ctx: Context, number: int) -> int:
    for _ in range(STEPS):
        number = await count_up(number)
    return number


async def seconds_of(url: str) -> tuple[float, float]:
    """Return the time from the first start to the last result, and the CPU time of this thread meanwhile."""
    async with Holdfast(url) as hf:
        hf.include(app)
        async with hf.worker(concurrency=CONCURRENCY):
            await hf.execute(five, 0)  # one-time costs do not count
            begun, busy = time.perf_counter(), time.thread_time()
            runs = await hf.start_many(five, [(number,) for number in range(RUNS)])
            results = await asyncio.gather(*(run.result() for run in runs))
            took = time.perf_counter() - begun, time.thread_time() - busy
    assert results == [number + STEPS for number in range(RUNS)]
    return took


async def test_steps_on_redis_are_nearly_as_fast_as_in_memory() -> None:
    """In turns, because the speed of a machine changes within seconds; the median is that of the shares.

    The share of CPU time tells what remains where other processes leave no core to the server.
    """
    in_memory: list[tuple[float, float]] = []
    on_redis: list[tuple[float, float]] = []
    with RedisServer({"appendfsync": "everysec"}) as server:
        for number in range(ROUNDS):
            in_memory.append(await seconds_of("memory://"))
            on_redis.append(await seconds_of(server.url_of(namespace=f"round-{number}")))

    shares = [memory[0] / redis[0] for memory, redis in zip(in_memory, on_redis, strict=True)]
    share = statistics.median(shares)
    of_busy = statistics.median(memory[1] / redis[1] for memory, redis in zip(in_memory, on_redis, strict=True))
    redis, memory = (RUNS * STEPS / statistics.median(took for took, _ in each) for each in (on_redis, in_memory))
    sys.stdout.write(
        f"figure: {share:.2f} of memory:// (from {min(shares):.2f} to {max(shares):.2f}), by CPU time of the worker "
        f"{of_busy:.2f}: {redis:,.0f} and {memory:,.0f} steps a second\n"
    )
    assert share >= LEAST_SHARE
