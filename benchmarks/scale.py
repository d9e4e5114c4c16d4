"""Growth of costs: long histories, many sleeping runs, two processes, an idle worker, the import.

python -m benchmarks.scale [--sleeping 100000] [--entries 5000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time

from benchmarks.peers.driver import resident_bytes
from benchmarks.versus.cells import answer_of
from holdfast import Context, Holdfast, Registry

registry = Registry()


@registry.step
async def nothing(number: int) -> int:
    return number


@registry.workflow
async def sleeper(ctx: Context, number: int) -> int:
    await ctx.sleep(86_400)
    return number


@registry.workflow
async def quick(ctx: Context, number: int) -> int:
    return await nothing(number)


async def claim_seconds(url: str, sleeping: int, count: int = 200) -> tuple[float, float, int]:
    """Measure a one-step run from start to result, before and after many others went to sleep; and their memory."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        async with hf.worker(concurrency=500):
            before = await quick_seconds(hf, count)
            await hf.start_many(sleeper, [(number,) for number in range(1_000)])
            await asleep(hf)
            base = memory_kib()
            for begin in range(0, sleeping, 5_000):
                await hf.start_many(sleeper, [(number,) for number in range(begin, begin + 5_000)])
                await asleep(hf)
            return before, await quick_seconds(hf, count), memory_kib() - base


async def asleep(hf: Holdfast) -> None:
    while [run async for run in hf.list(type="sleeper", state=["pending", "running"], limit=1)]:
        await asyncio.sleep(0.1)


async def quick_seconds(hf: Holdfast, count: int) -> float:
    started = time.perf_counter()
    for number in range(count):
        await hf.execute(quick, number)
    return (time.perf_counter() - started) / count


def memory_kib() -> int:
    return int(resident_bytes(os.getpid()) / 1024)


def driven(workload: str, url: str, **sizes: int) -> dict[str, float]:
    """Return a measurement of our driver in a separate process, because memory and CPU are those of a process."""
    request = json.dumps({"workload": workload, "url": url, "sizes": sizes})
    figures: dict[str, float] = answer_of([sys.executable, "-m", "benchmarks.peers.holdfast", request], 600)["figures"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleeping", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=5_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        added = driven("import", "", count=5)["seconds"]
        print(f"from holdfast import Holdfast      {added * 1e3:7.0f} ms")
        idle = driven("idle", f"sqlite:///{name}/idle.db", seconds=5)
        print(
            f"idle worker                        {idle['share'] * 100:7.2f} % of a core, {idle['bytes'] / 2**20:.0f} MB"
        )
        driven("history", f"sqlite:///{name}/long.db", steps=given.entries)
        resumed = driven("resume", f"sqlite:///{name}/long.db")["resume"]
        print(
            f"resume after {given.entries:,} entries        {resumed * 1e3:7.0f} ms, from the worker's start to the end"
        )
        before, after, memory = asyncio.run(claim_seconds(f"sqlite:///{name}/claim.db", given.sleeping))
        print(f"start to result, nothing asleep    {before * 1e3:7.2f} ms")
        print(
            f"  with {given.sleeping:,} runs asleep        {after * 1e3:7.2f} ms = {after / before:.2f} times; "
            f"{memory / 1024:.0f} MB more in the process, most of it SQLite's page cache"
        )


if __name__ == "__main__":
    main()
