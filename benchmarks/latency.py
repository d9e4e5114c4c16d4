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


async def step_seconds(hf: Holdfast, count: int = 500) -> float:
    """One step after another in one run."""
    started = time.perf_counter()
    await hf.execute(many_steps, count)
    return (time.perf_counter() - started) / count


async def start_to_result_seconds(hf: Holdfast, count: int = 200) -> float:
    """From the start of a one-step run to its result, in the same process."""
    took = []
    for _ in range(count):
        started = time.perf_counter()
        await hf.execute(one_step)
        took.append(time.perf_counter() - started)
    return statistics.median(took)


async def message_seconds(hf: Holdfast, count: int = 100) -> float:
    """From sending a message to the end of the suspended run that waited for it."""
    runs = await hf.start_many(wait_for_message, [() for _ in range(count)])
    while [run async for run in hf.list(type="wait_for_message", state=["pending", "running"], limit=1)]:
        await asyncio.sleep(0.05)
    took = []
    for run in runs:
        started = time.perf_counter()
        await run.send("go")
        await run.result()
        took.append(time.perf_counter() - started)
    return statistics.median(took)


async def measure(directory: Path) -> None:
    bare = bare_commit_seconds(directory)
    print(f"bare commit                        {bare * 1e3:7.2f} ms")
    async with Holdfast(f"sqlite:///{directory}/latency.db") as hf:
        hf.include(registry)
        async with hf.worker():
            await hf.execute(one_step)
            for what, measured in (
                ("one step after another", step_seconds),
                ("start to result, one step", start_to_result_seconds),
                ("message to result of a waiting run", message_seconds),
            ):
                seconds = await measured(hf)
                again = bare_commit_seconds(directory, 100)  # the machine may have become slower meanwhile
                print(f"{what:<34} {seconds * 1e3:7.2f} ms = {seconds / min(bare, again):.1f} bare commits")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(measure(Path(name)))


if __name__ == "__main__":
    main()
