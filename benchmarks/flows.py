"""Flows: waking one after many awaits, calls of tasks beside those of Python workflows, instructions and compiling.

python -m benchmarks.flows [--awaits 10 1000 100000] [--runs 200]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from holdfast import Context, Holdfast, Registry, RunHandle
from holdfast.core.checkpoint import Claimed, ClaimRequest
from holdfast.core.ports import Store
from holdfast.flows.compiler import compile_flow
from holdfast.flows.machine import Machine

WAKES = 200
BATCH = 100
ROUNDS = 5
CALLS = 5
INSTRUCTIONS = 1_000_000
LINES = 500

COUNTER = """
async def main():
    n = 0
    while True:
        n += await receive("add")
        set_value("n", n)
"""
CALLER = """
async def main():
    n = 0
    for i in range(5):
        n += await call("add.v1", n=i)
    return n
"""
LOOP = """
async def main():
    n = 0
    while True:
        n = n + 1
"""

app = Registry()


@app.task("add.v1")
async def add(n: int) -> int:
    return n + 1


@app.workflow("python.v1")
async def python(ctx: Context) -> int:
    n = 0
    for i in range(CALLS):
        n += await ctx.call(add, i)
    return n


class CountingStore:
    """A store that notes the most entries that a lease had."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest) -> Claimed:
        claimed = await self._store.claim(request)
        self.most = max([self.most, *(len(lease.entries) for lease in claimed.leases)])
        return claimed


async def wake_seconds(counts: list[int], wakes: int = WAKES) -> tuple[dict[int, float], int]:
    """Return the median time from a message to its effect after each number of awaits, and the most entries of a claim.

    One run has made each number of awaits. They are woken in turns, so that the speed of the host affects all alike.
    """
    from holdfast.stores.memory import MemoryStore

    counting: Any = CountingStore(MemoryStore())
    times: dict[int, list[float]] = {count: [] for count in counts}
    async with Holdfast("memory://", store=counting) as hf:
        await hf.flows.register(COUNTER, type="counter.v1")
        async with hf.worker():
            runs = {count: await hf.start("counter.v1") for count in counts}
            for count, run in runs.items():
                await _reach(run, count)
            counting.most = 0
            for wake in range(1, wakes + 1):
                for count, run in runs.items():
                    began = time.perf_counter()
                    await run.send("add", 1)
                    while await run.value("n", 0) < count + wake:
                        await asyncio.sleep(0)
                    times[count].append(time.perf_counter() - began)
            for run in runs.values():
                await run.cancel()
    return {count: statistics.median(found) for count, found in times.items()}, counting.most


async def _reach(run: RunHandle[Any], awaits: int) -> None:
    """Let a run make a number of awaits."""
    for first in range(0, awaits, BATCH):
        last = min(first + BATCH, awaits)
        for _ in range(first, last):
            await run.send("add", 1)
        while await run.value("n", 0) < last:
            await asyncio.sleep(0.001)


async def call_seconds(type: str, runs: int) -> float:
    """Return the time that runs of a type take, each of which calls tasks."""
    async with Holdfast("memory://") as hf:
        hf.include(app)
        await hf.flows.register(CALLER, type="flow.v1")
        async with hf.worker():
            began = time.perf_counter()
            await asyncio.gather(*(run.result() for run in await hf.start_many(type, [{}] * runs)))
            return time.perf_counter() - began


def instruction_rate() -> float:
    """Return the instructions that the machine executes per second of CPU time."""
    program = compile_flow(LOOP)
    machine = Machine.begin(program, LOOP, "{}", run_id="r", now=0)
    began = time.thread_time()
    while machine.instructions < INSTRUCTIONS:
        machine.run(2_000)
    return machine.instructions / (time.thread_time() - began)


def compile_seconds() -> float:
    """Return the CPU time in which a program of 500 lines is compiled, the best of several times."""
    block = [
        "async def helper{n}(a, b=2):",
        "    found = [a * i + b for i in range(10) if i % 2]",
        "    for one in found:",
        "        if one > {n} and one < 100:",
        "            a += one",
        "    try:",
        "        b = await call('task.v1', n=a, text=f'{{a}} of {{b}}')",
        "    except ChildFailed as e:",
        "        return e['message']",
        "    return [a, b, len(found)]",
    ]
    count = LINES // len(block) - 1
    text = "\n".join(line.format(n=n) for n in range(count) for line in block)
    text += "\n\nasync def main(n=0):\n" + "\n".join(f"    n += {i}" for i in range(8)) + "\n    return n\n"
    times = []
    for _ in range(5):
        began = time.thread_time()
        compile_flow(text)
        times.append(time.thread_time() - began)
    return min(times)


async def measure(awaits: list[int], runs: int) -> None:
    times, most = await wake_seconds(awaits)
    for count, seconds in times.items():
        ratio = seconds / times[awaits[0]]
        print(f"wake after {count:7,} awaits       {seconds * 1e3:8.3f} ms, {ratio:.2f} of the first", flush=True)
    print(f"entries per claim              {most:8}", flush=True)
    ratios = []
    for _ in range(ROUNDS):
        python_seconds, flow_seconds = await call_seconds("python.v1", runs), await call_seconds("flow.v1", runs)
        ratios.append(python_seconds / flow_seconds)
    print(f"calls of tasks, flow / Python  {statistics.median(ratios):8.2f} (higher is faster)", flush=True)
    print(f"machine                        {instruction_rate():8,.0f} instructions/s of CPU", flush=True)
    print(f"compiling {LINES} lines             {compile_seconds() * 1e3:7.1f} ms of CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--awaits", type=int, nargs="+", default=[10, 1_000, 100_000], help="awaits before the measurement"
    )
    parser.add_argument("--runs", type=int, default=100, help="runs that call tasks")
    options = parser.parse_args()
    asyncio.run(measure(options.awaits, options.runs))


if __name__ == "__main__":
    main()
