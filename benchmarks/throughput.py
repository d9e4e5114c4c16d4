"""Durable steps a second: many five-step workflows at once in one process, on SQLite with synchronous=FULL.

python -m benchmarks.throughput [--runs 2000] [--concurrency 500] [--url URL]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.machine import bare_commit_seconds
from holdfast import Context, Holdfast, Registry

STEPS = 5

registry = Registry()


@registry.step
async def count_up(number: int) -> int:
    return number + 1


@registry.step
def count_up_in_thread(number: int) -> int:
    return number + 1


@registry.workflow
async def five_async(ctx: Context, number: int) -> int:
    for _ in range(STEPS):
        number = await count_up(number)
    return number


@registry.workflow
async def five_sync(ctx: Context, number: int) -> int:
    for _ in range(STEPS):
        number = await count_up_in_thread(number)
    return number


async def measure(url: str, workflow: str, runs: int, concurrency: int) -> tuple[float, float]:
    """Steps a second from the first start to the last result, and CPU microseconds of the loop's thread per step."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        async with hf.worker(concurrency=concurrency):
            await hf.execute(workflow, {"number": 0})  # everything that happens once
            started, busy = time.perf_counter(), time.thread_time()
            handles = await hf.start_many(workflow, [{"number": number} for number in range(runs)])
            results = await asyncio.gather(*(handle.result() for handle in handles))
            took, busy = time.perf_counter() - started, time.thread_time() - busy
    assert results == [number + STEPS for number in range(runs)]
    return runs * STEPS / took, busy / (runs * STEPS) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--url", help="a store of your own instead of a new SQLite file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        bare = bare_commit_seconds(directory)
        print(f"bare commit               {bare * 1e3:8.2f} ms  = {1 / bare:,.0f} a second, one after another")
        for workflow, what in (("five_async", "async steps"), ("five_sync", "sync steps (threads)")):
            figures = []
            for round_ in range(given.repeat):
                url = given.url or f"sqlite:///{directory}/{workflow}{round_}.db"
                figures.append(asyncio.run(measure(url, workflow, given.runs, given.concurrency)))
            rate, busy = max(figures)
            print(
                f"{what:<25} {rate:8,.0f} a second = {rate * bare:.1f} per bare commit; "
                f"{busy:.0f} µs of Python each on the loop's thread (best of {given.repeat})"
            )


if __name__ == "__main__":
    main()
