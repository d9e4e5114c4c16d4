"""The memory of a finished run on a Redis server, with all its indexes."""

from __future__ import annotations

import asyncio
import sys

from holdfast import Holdfast
from tests.figures.throughput import CONCURRENCY, STEPS, app, five
from tests.redis import RedisServer

RUNS = 4_000
WARM_RUNS = 1_000
LIMIT_BYTES = 3 * 1024


async def test_a_finished_run_takes_little_memory() -> None:
    """By the difference of `used_memory`, after the server has allocated what it needs once."""
    with RedisServer({"appendfsync": "everysec"}) as server:
        async with Holdfast(server.url_of(namespace="memory")) as hf:
            hf.include(app)
            async with hf.worker(concurrency=CONCURRENCY):
                await finish(hf, WARM_RUNS)
                before = int(server.info()["used_memory"])
                await finish(hf, RUNS)
                after = int(server.info()["used_memory"])

    size = (after - before) / RUNS
    sys.stdout.write(f"figure: {size:,.0f} bytes for a finished run of {STEPS} steps\n")
    assert size < LIMIT_BYTES


async def finish(hf: Holdfast, count: int) -> None:
    runs = await hf.start_many(five, [(number,) for number in range(count)])
    await asyncio.gather(*(run.result() for run in runs))
