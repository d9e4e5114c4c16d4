"""The cost of larger operations: a loop's iteration, a join, a map over children; and their growth.

python -m benchmarks.vocabulary [--store postgres] [--iterations 100000] [--children 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.stores import MeasuredStore, add_options, chosen
from holdfast import Break, Context, Continue, Holdfast, Registry

registry = Registry()


@registry.step
async def nothing(number: int) -> int:
    return number


@registry.task
async def item(number: int) -> int:
    return number


@registry.workflow
async def sequence(ctx: Context, count: int) -> int:
    for number in range(count):
        await nothing(number)
    return count


@registry.workflow
async def looping(ctx: Context, count: int, pause_at: int = -1) -> int:
    async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
        await nothing(number)
        if number == pause_at:
            await ctx.receive("go")
        return Break(number) if number + 1 >= count else Continue(number + 1)

    return await ctx.loop("count", body, 0)


@registry.workflow
async def one(ctx: Context, number: int) -> int:
    return await nothing(number)


@registry.workflow
async def joining(ctx: Context, width: int) -> int:
    async def branch(ctx: Context) -> int:
        return await nothing(1)

    return sum((await ctx.join("wide", {str(key): branch for key in range(width)})).values())


@registry.workflow
async def mapping(ctx: Context, count: int, limit: int | None = None) -> int:
    return sum(await ctx.map(item, range(count), limit=limit))


async def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


async def loop_ratio(hf: Holdfast, count: int = 1_000) -> float:
    """Measure an iteration of one step, as a multiple of a step in a plain sequence; the two take turns."""
    looped = straight = 0.0
    for _ in range(3):
        straight += await seconds(lambda: hf.execute(sequence, count))
        looped += await seconds(lambda: hf.execute(looping, count))
    return looped / straight


async def join_ratio(hf: Holdfast, width: int = 1_000) -> float:
    """Measure a join of many steps, as a multiple of as many runs of one step each that share their commits."""
    joined = shared = 0.0
    for _ in range(3):
        runs = await hf.start_many(one, [(number,) for number in range(width)])
        shared += await seconds(lambda runs=runs: asyncio.gather(*(run.result() for run in runs)))  # type: ignore[misc]
        joined += await seconds(lambda: hf.execute(joining, width))
    return joined / shared


async def resume_seconds(url: str, iterations: int) -> float:
    """Measure from waking a run in the middle of a long loop, in a fresh worker, to the end of the iteration."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        async with hf.worker():
            run = await hf.start(looping, iterations + 1, iterations - 1)
            while (await run.info()).state != "suspended":
                await asyncio.sleep(0.05)
        async with hf.worker():
            await hf.execute(one, 0)
            started = time.perf_counter()
            await run.send("go")
            await run.result()
            return time.perf_counter() - started


async def measure(store: MeasuredStore, iterations: int, children: int) -> None:
    with store.place() as url:
        async with Holdfast(url) as hf:
            hf.include(registry)
            async with hf.worker(concurrency=500):
                print(f"loop: an iteration of one step takes {await loop_ratio(hf):.2f} steps of a plain sequence")
                print(f"join: 1,000 steps take {await join_ratio(hf):.2f} x the time of 1,000 runs of one step")
                for count in (children // 4, children):
                    took = await seconds(lambda count=count: hf.execute(mapping, count))  # type: ignore[misc]
                    print(f"map: {count:,} children take {took:.1f} s, {took / count * 1e6:.0f} µs each")
                took = await seconds(lambda: hf.execute(mapping, children, 100))
                print(f"map, 100 at once: {children:,} children take {took:.1f} s", flush=True)
    for count in (iterations // 100, iterations):
        with store.place() as url:
            started = time.perf_counter()
            resumed = await resume_seconds(url, count)
            took = time.perf_counter() - started
            size = store.megabytes(url)
            print(f"loop of {count:,}: {took:.0f} s, {size:.1f} MB, resumed and ended in {resumed * 1000:.0f} ms")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--iterations", type=int, default=100_000)
    parser.add_argument("--children", type=int, default=10_000)
    given = parser.parse_args(arguments)
    for store in chosen(given):
        asyncio.run(measure(store, given.iterations, given.children))


if __name__ == "__main__":
    main()
