"""The cost of a scheduler: a query without due slots, and an idle worker, with 100 schedules and with 100,000.

python -m benchmarks.schedules [--schedules 100000] [--url postgresql://…]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable

from holdfast import Holdfast
from holdfast.app import session_of
from holdfast.core.clock import DAY
from holdfast.core.commands import FireSchedules, PutSchedules
from holdfast.core.model import Schedule
from holdfast.core.questions import ListDueSchedules
from holdfast.core.schedules import firing

BATCH = 1_000
LOOKS = 300
IDLE_SECONDS = 10.0


async def fill(hf: Holdfast, start: int, end: int) -> float:
    """Set schedules that fire in the coming months; return the number per second."""
    began = time.perf_counter()
    for first in range(start, end, BATCH):
        numbers = range(first, min(end, first + BATCH))
        await session_of(hf).store.apply(
            PutSchedules(
                schedules=[
                    Schedule(name=f"s{n}", type="nobody.v1", payload="{}", every=DAY * (1 + n % 90)) for n in numbers
                ]
            )
        )
    return (end - start) / (time.perf_counter() - began)


async def look_seconds(hf: Holdfast) -> float:
    """Return the median time of a query without due slots."""
    times = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await session_of(hf).store.catalog(ListDueSchedules(limit=200))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def idle_share(hf: Holdfast) -> float:
    """Return the share of a core that this process takes while a worker is idle."""
    async with hf.worker():
        await asyncio.sleep(1)
        began = time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        return (time.process_time() - began) / IDLE_SECONDS


async def fires(hf: Holdfast, count: int) -> float:
    """Return the number of runs created per second, by schedules that are all due."""
    due = [await hf.schedules.put(f"due{n}", "nobody.v1", every=1) for n in range(count)]
    await asyncio.sleep(1.1)
    found = await session_of(hf).store.catalog(ListDueSchedules(limit=len(due)))
    began = time.perf_counter()
    await session_of(hf).store.apply(
        FireSchedules(firings=[firing(schedule, found.now) for schedule in found.schedules])
    )
    return len(found.schedules) / (time.perf_counter() - began)


async def measure(url: str, schedules: int, say: Callable[[str], None]) -> None:
    async with Holdfast(url) as hf:
        await fill(hf, 0, 100)
        say(f"look, 100 schedules            {await look_seconds(hf) * 1e3:7.3f} ms")
        say(f"idle worker                    {await idle_share(hf) * 100:7.2f} % of a core")
        say(f"set                            {await fill(hf, 100, schedules):7,.0f} schedules/s")
        say(f"look, {schedules:,} schedules        {await look_seconds(hf) * 1e3:7.3f} ms")
        say(f"idle worker                    {await idle_share(hf) * 100:7.2f} % of a core")
        say(f"fire 200 that are due          {await fires(hf, 200):7,.0f} runs/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--url", help="a database for this, empty; by default an SQLite file and private servers")
    given, _ = parser.parse_known_args()
    if given.url:
        asyncio.run(measure(given.url, given.schedules, print))
        return
    from tests.postgres import Databases, PostgresServer, wanted_version
    from tests.redis import RedisServer

    with tempfile.TemporaryDirectory() as name:
        print("SQLite")
        asyncio.run(measure(f"sqlite:///{name}/schedules.db", given.schedules, print))
    with PostgresServer(wanted_version()) as server, Databases(server.url) as databases, databases.lend() as url:
        print("Postgres")
        asyncio.run(measure(url, given.schedules, print))
    with RedisServer() as redis:
        print("Redis")
        asyncio.run(measure(redis.url, given.schedules, print))


if __name__ == "__main__":
    main()
