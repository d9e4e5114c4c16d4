"""What grows with what: long histories, many sleeping runs, two processes, an idle worker, the import.

python -m benchmarks.scale [--sleeping 100000] [--entries 5000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast import Context, Holdfast, Registry

registry = Registry()


@registry.step
async def nothing(number: int) -> int:
    return number


@registry.workflow
async def long_history(ctx: Context, entries: int) -> str:
    for number in range(entries):
        await nothing(number)
    return str(await ctx.receive("go"))


@registry.workflow
async def sleeper(ctx: Context, number: int) -> int:
    await ctx.sleep(86_400)
    return number


@registry.workflow
async def quick(ctx: Context, number: int) -> int:
    return await nothing(number)


async def replay_seconds(url: str, entries: int) -> float:
    """From waking a suspended run with a long history, in a fresh worker, to its end."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        async with hf.worker():
            run = await hf.start(long_history, entries)
            while (await run.info()).state != "suspended":
                await asyncio.sleep(0.05)
        async with hf.worker():
            await hf.execute(quick, 0)
            started = time.perf_counter()
            await run.send("go", "on")
            await run.result()
            return time.perf_counter() - started


async def claim_seconds(url: str, sleeping: int, count: int = 200) -> tuple[float, float, int]:
    """A one-step run from start to result, before and after many others went to sleep; and the memory they took."""
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


async def idle(url: str, seconds: float) -> tuple[float, float]:
    """The share of a core an idle worker takes, and its memory in MB."""
    async with Holdfast(url) as hf:
        hf.include(registry)
        async with hf.worker():
            await asyncio.sleep(1)
            busy = time.process_time()
            await asyncio.sleep(seconds)
            busy = time.process_time() - busy
    return busy / seconds, memory_kib() / 1024


def memory_kib() -> int:
    text = Path("/proc/self/statm").read_text() if Path("/proc/self/statm").exists() else ""
    if text:
        return int(text.split()[1]) * resource.getpagesize() // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def import_seconds() -> float:
    code = "import time; t = time.perf_counter(); from holdfast import Holdfast; print(time.perf_counter() - t)"
    outputs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(5)
    ]
    return min(float(output) for output in outputs)


def in_fresh_process(function: str, *arguments: object) -> str:
    """Memory and CPU are those of a process, so each of them gets one."""
    call = f"{function}({', '.join(map(repr, arguments))})"
    code = f"import asyncio, benchmarks.scale as s; print(asyncio.run(s.{call}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleeping", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=5_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(f"from holdfast import Holdfast      {import_seconds() * 1e3:7.0f} ms")
        share, megabytes = eval(in_fresh_process("idle", f"sqlite:///{name}/idle.db", 5.0))  # noqa: S307 - our own print
        print(f"idle worker                        {share * 100:7.2f} % of a core, {megabytes:.0f} MB")
        replay = asyncio.run(replay_seconds(f"sqlite:///{name}/replay.db", given.entries))
        print(f"replay of {given.entries:,} entries           {replay * 1e3:7.0f} ms, from the message to the end")
        before, after, memory = asyncio.run(claim_seconds(f"sqlite:///{name}/claim.db", given.sleeping))
        print(f"start to result, nothing asleep    {before * 1e3:7.2f} ms")
        print(
            f"  with {given.sleeping:,} runs asleep        {after * 1e3:7.2f} ms = {after / before:.2f} times; "
            f"{memory / 1024:.0f} MB more in the process, most of it SQLite's page cache"
        )


if __name__ == "__main__":
    main()
