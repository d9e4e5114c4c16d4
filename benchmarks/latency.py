"""How long one thing takes, one after another, as a multiple of a bare commit of the same machine.

python -m benchmarks.latency
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.machine import bare_commit_seconds
from holdfast import Context, Holdfast, Registry

registry = Registry()


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


ROUNDS = 20


async def step_seconds(hf: Holdfast, count: int = 50) -> float:
    """One step after another in one run."""
    started = time.perf_counter()
    await hf.execute(many_steps, count)
    return (time.perf_counter() - started) / count


async def start_to_result_seconds(hf: Holdfast, count: int = 20) -> float:
    """From the start of a one-step run to its result, in the same process."""
    started = time.perf_counter()
    for _ in range(count):
        await hf.execute(one_step)
    return (time.perf_counter() - started) / count


async def message_seconds(hf: Holdfast, count: int = 10) -> float:
    """From sending a message to the end of the suspended run that waited for it."""
    runs = await hf.start_many(wait_for_message, [() for _ in range(count)])
    while [run async for run in hf.list(type="wait_for_message", state=["pending", "running"], limit=1)]:
        await asyncio.sleep(0.02)
    started = time.perf_counter()
    for run in runs:
        await run.send("go")
        await run.result()
    return (time.perf_counter() - started) / count


async def measure(directory: Path) -> None:
    async with Holdfast(f"sqlite:///{directory}/latency.db") as hf:
        hf.include(registry)
        async with hf.worker():
            await hf.execute(one_step)
            for what, measured in (
                ("one step after another", step_seconds),
                ("start to result, one step", start_to_result_seconds),
                ("message to result of a waiting run", message_seconds),
            ):
                # In turns, as the disk is a little faster or slower from one second to the next.
                rounds = [(await measured(hf), bare_commit_seconds(directory, 50)) for _ in range(ROUNDS)]
                took = statistics.median(seconds for seconds, _ in rounds)
                ratio = statistics.median(seconds / bare for seconds, bare in rounds)
                print(f"{what:<34} {took * 1e3:7.2f} ms = {ratio:.1f} bare commits")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(measure(Path(name)))


if __name__ == "__main__":
    main()
