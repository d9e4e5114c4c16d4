"""Tasks per second: thousands are enqueued without a worker, then one worker runs them all.

python -m benchmarks.tasks [--store postgres] [--url URL] [--count 10000] [--concurrency 500] [--repeat 3]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import NamedTuple

from benchmarks.stores import MeasuredStore, add_options, chosen
from holdfast import Holdfast, Registry
from holdfast.app import session_of

registry = Registry()


@registry.task("bench.sync.v1")
def double(number: int) -> int:
    return number * 2


@registry.task("bench.async.v1")
async def double_on_loop(number: int) -> int:
    return number * 2


class Figures(NamedTuple):
    """One measurement: rates in tasks per second, CPU microseconds of the loop's thread per task."""

    enqueued: float
    executed: float
    busy: float


async def drained(url: str, type: str, count: int, concurrency: int) -> Figures:
    """Enqueue in one call, then work until nothing is left."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        await session_of(hf).open()
        started = time.perf_counter()
        await hf.start_many(type, [{"number": number} for number in range(count)])
        enqueued = count / (time.perf_counter() - started)
        started, busy = time.perf_counter(), time.thread_time()
        await hf.worker(concurrency=concurrency).run_until_idle()
        took, busy = time.perf_counter() - started, time.thread_time() - busy
        assert not [run async for run in hf.list(state=["pending", "running", "failed"], limit=1)]
    return Figures(enqueued, count / took, busy / count * 1e6)


def measure(store: MeasuredStore, count: int, concurrency: int, repeat: int) -> None:
    def line(what: str, rates: list[float], more: str = "") -> None:
        rate = statistics.median(rates)
        per_commit = rate * store.bare_commit_seconds()
        print(f"{what:<34} {rate:8,.0f} a second = {per_commit:.1f} per bare commit{more}", flush=True)

    found: dict[str, list[Figures]] = {"bench.sync.v1": [], "bench.async.v1": []}
    for _ in range(repeat):  # in turns
        for type, figures in found.items():
            with store.place() as url:
                figures.append(asyncio.run(drained(url, type, count, concurrency)))
    line(f"enqueue {count:,} tasks", [figures.enqueued for each in found.values() for figures in each])
    for type, what in (("bench.sync.v1", "sync tasks (threads)"), ("bench.async.v1", "async tasks")):
        busy = statistics.median(figures.busy for figures in found[type])
        rates = [figures.executed for figures in found[type]]
        line(f"{what}, 1 worker", rates, f"; {busy:.0f} µs of Python each on the loop's thread")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args(arguments)
    for store in chosen(given):
        measure(store, given.count, given.concurrency, given.repeat)


if __name__ == "__main__":
    main()
