"""How long one thing takes, one after another, as a multiple of a bare commit of the same machine.

python -m benchmarks.latency [--store postgres] [--url URL]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.processes import workers
from benchmarks.stores import MeasuredStore, add_options, chosen
from holdfast import Context, Holdfast, Registry

ROUNDS = 15

registry = Registry()

Measure = Callable[[Holdfast], Awaitable[list[float]]]


@registry.step
async def nothing() -> None:
    pass


@registry.workflow
async def one_step(ctx: Context) -> None:
    await nothing()


@registry.workflow
async def many_steps(ctx: Context, count: int) -> None:
    for _ in range(count):
        await nothing()


@registry.workflow
async def wait_for_message(ctx: Context) -> None:
    await ctx.receive("go")


@registry.workflow
async def wait_for_event(ctx: Context, topic: str) -> None:
    await ctx.wait_event(topic)


async def steps(hf: Holdfast, count: int = 40) -> list[float]:
    """One step after another in one run."""
    started = time.perf_counter()
    await hf.execute(many_steps, count)
    return [(time.perf_counter() - started) / count]


async def starts(hf: Holdfast, count: int = 10) -> list[float]:
    """From the start of a one-step run to its result."""
    return [await seconds(hf.execute(one_step)) for _ in range(count)]


async def messages(hf: Holdfast, count: int = 10) -> list[float]:
    """From sending a message to the end of the suspended run that waited for it."""
    runs = await hf.start_many(wait_for_message, [() for _ in range(count)])
    await all_suspended(hf, "wait_for_message")

    async def go(number: int) -> None:
        await runs[number].send("go")
        await runs[number].result()

    return [await seconds(go(number)) for number in range(count)]


async def events(hf: Holdfast, count: int = 10) -> list[float]:
    """From publishing an event to the end of the suspended run that waited for it."""
    topics = [f"topic {time.monotonic_ns()} {number}" for number in range(count)]
    runs = await hf.start_many(wait_for_event, [(topic,) for topic in topics])
    await all_suspended(hf, "wait_for_event")

    async def go(number: int) -> None:
        await hf.emit(topics[number])
        await runs[number].result()

    return [await seconds(go(number)) for number in range(count)]


async def seconds(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def all_suspended(hf: Holdfast, type: str) -> None:
    while [run async for run in hf.list(type=type, state=["pending", "running"], limit=1)]:
        await asyncio.sleep(0.02)


async def report(hf: Holdfast, store: MeasuredStore, what: str, measure: Measure) -> None:
    """The median, and what it is in bare commits that were timed in turns with it: the disk's speed changes."""
    await measure(hf)
    took: list[float] = []
    ratios: list[float] = []
    for _ in range(ROUNDS):
        before = store.bare_commit_seconds(20)
        found = await measure(hf)
        took += found
        ratios.append(statistics.median(found) * 2 / (before + store.bare_commit_seconds(20)))
    middle, best = statistics.median(took), min(took)
    print(
        f"{what:<50} {middle * 1e3:7.2f} ms (at best {best * 1e3:.2f}) = {statistics.median(ratios):.1f} bare commits",
        flush=True,
    )


async def in_process(url: str, store: MeasuredStore) -> None:
    async with Holdfast(url) as hf:
        hf.include(registry)
        async with hf.worker():
            await report(hf, store, "one step after another", steps)
            await report(hf, store, "start to result of one step", starts)
            await report(hf, store, "message to result of a waiting run", messages)
            await report(hf, store, "event to result of a waiting run", events)


async def across_processes(url: str, store: MeasuredStore) -> None:
    async with Holdfast(url) as hf:
        hf.include(registry)
        await hf.opened()
        with workers(url, "benchmarks.latency", 1):
            await report(hf, store, "start to result of one step, other process", starts)
            await report(hf, store, "message to result of a waiting run, other process", messages)
            await report(hf, store, "event to result of a waiting run, other process", events)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    for store in chosen(parser.parse_args(arguments)):
        for measure in (in_process, across_processes):
            with store.place() as url:
                asyncio.run(measure(url, store))


if __name__ == "__main__":
    main()
