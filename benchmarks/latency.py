"""Latency of single operations, one after another, as a multiple of a bare commit of the same machine.

python -m benchmarks.latency [--store postgres] [--url URL]
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
from holdfast_bench import measures
from holdfast_bench.measures import Work, all_suspended, messages, seconds, starts, steps_in_a_row

ROUNDS = 15

registry = Registry()
registry.include(measures.registry)


@registry.workflow
async def wait_for_event(ctx: Context, topic: str) -> None:
    await ctx.wait_event(topic)


async def events(hf: Holdfast, count: int = 10) -> list[float]:
    """Measure from publishing an event to the end of the suspended run that waited for it."""
    topics = [f"topic {time.monotonic_ns()} {number}" for number in range(count)]
    runs = await hf.start_many(wait_for_event, [(topic,) for topic in topics])
    await all_suspended(hf, "wait_for_event")

    async def go(number: int) -> None:
        await hf.emit(topics[number])
        await runs[number].result()

    return [await seconds(go(number)) for number in range(count)]


async def report(hf: Holdfast, store: MeasuredStore, what: str, measure: Work) -> None:
    """Return the median, also in bare commits that alternate with the measurements: the disk's speed changes."""
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
            await report(hf, store, "one step after another", steps_in_a_row)
            await report(hf, store, "start to result of one step", starts)
            await report(hf, store, "message to result of a waiting run", messages)
            await report(hf, store, "event to result of a waiting run", events)


async def across_processes(url: str, store: MeasuredStore) -> None:
    async with Holdfast(url) as hf:
        hf.include(registry)
        await session_of(hf).open()
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
