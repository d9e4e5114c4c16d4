"""Durable steps per second: many five-step workflows at once, in one process and by worker processes.

python -m benchmarks.throughput [--store postgres] [--url URL] [--runs 2000] [--concurrency 500]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from benchmarks.processes import workers
from benchmarks.stores import MeasuredStore, add_options, chosen
from holdfast import Context, Holdfast, Registry
from holdfast.app import session_of

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


async def in_process(url: str, workflow: str, runs: int, concurrency: int) -> tuple[float, float]:
    """Return steps per second from the first start to the last result, and CPU microseconds of the loop per step."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        async with hf.worker(concurrency=concurrency):
            await hf.execute(workflow, {"number": 0})  # warm up
            started, busy = time.perf_counter(), time.thread_time()
            handles = await hf.start_many(workflow, [{"number": number} for number in range(runs)])
            results = await asyncio.gather(*(handle.result() for handle in handles))
            took, busy = time.perf_counter() - started, time.thread_time() - busy
    assert results == [number + STEPS for number in range(runs)]
    return runs * STEPS / took, busy / (runs * STEPS) * 1e6


async def by_processes(url: str, processes: int, runs: int, concurrency: int) -> float:
    """Return steps per second from the first start to the last end, executed by other processes."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        await session_of(hf).open()
        with workers(url, "benchmarks.throughput", processes, concurrency):
            await asyncio.gather(*(hf.execute("five_async", {"number": 0}) for _ in range(20)))
            started = time.perf_counter()
            await hf.start_many("five_async", [{"number": number} for number in range(runs)])
            while [run async for run in hf.list(type="five_async", state=["pending", "running"], limit=1)]:
                await asyncio.sleep(0.05)
            return runs * STEPS / (time.perf_counter() - started)


async def start_many(url: str, count: int) -> float:
    """Return the number of runs per second that one call starts."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        await hf.start_many("five_async", [{"number": 0}])
        started = time.perf_counter()
        await hf.start_many("five_async", [{"number": number} for number in range(count)])
        return count / (time.perf_counter() - started)


def measure(store: MeasuredStore, runs: int, concurrency: int, repeat: int) -> None:
    def line(what: str, rates: list[float], more: str = "") -> None:
        rate = statistics.median(rates)
        per_commit = rate * store.bare_commit_seconds()
        print(f"{what:<34} {rate:8,.0f} a second = {per_commit:.1f} per bare commit{more}", flush=True)

    for workflow, what in (("five_async", "async steps"), ("five_sync", "sync steps (threads)")):
        figures = []
        for _ in range(repeat):
            with store.place() as url:
                figures.append(asyncio.run(in_process(url, workflow, runs, concurrency)))
        busy = statistics.median(busy for _, busy in figures)
        line(what, [rate for rate, _ in figures], f"; {busy:.0f} µs of Python each on the loop's thread")
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeat):  # in turns
        for processes, found in rates.items():
            with store.place() as url:
                found.append(asyncio.run(by_processes(url, processes, runs, concurrency)))
    line("async steps, 1 worker process", rates[1])
    ratio = statistics.median(two / one for one, two in zip(rates[1], rates[2], strict=True))
    line("async steps, 2 worker processes", rates[2], f"; {ratio:.2f} times one")
    found = []
    for _ in range(repeat):
        with store.place() as url:
            found.append(asyncio.run(start_many(url, 10_000)))
    line("start_many of 10,000 runs", found)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args(arguments)
    for store in chosen(given):
        measure(store, given.runs, given.concurrency, given.repeat)


if __name__ == "__main__":
    main()
