"""holdfast, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.peers.driver import (
    Driver,
    Figures,
    Request,
    Workload,
    idle,
    importing,
    lateness,
    per_step_async,
    seconds_async,
    timed_async,
)
from benchmarks.peers.filling import fill
from holdfast import Context, Holdfast, Registry
from holdfast.app import session_of

STEPS = 5

SETUP = """
    One process: `Holdfast(url)` with `hf.worker(concurrency=500)`, and the garbage collector thresholds that `holdfast
    worker` sets. Everything else is the default. SQLite has `synchronous=FULL`, Redis
    `appendfsync always`. Bulk is `hf.start_many`.
"""

registry = Registry()


@registry.step
async def count_up(number: int) -> int:
    return number + 1


@registry.task
async def double(number: int) -> int:
    return number * 2


@registry.workflow
async def five_steps(ctx: Context, number: int) -> int:
    for _ in range(STEPS):
        number = await count_up(number)
    return number


@registry.workflow
async def many_steps(ctx: Context, count: int) -> int:
    for number in range(count):
        await count_up(number)
    return count


@registry.workflow
async def one_step(ctx: Context, number: int) -> int:
    return await count_up(number)


@registry.workflow
async def wait_for_message(ctx: Context) -> str:
    return await ctx.receive("go", type=str)


@registry.workflow
async def many_children(ctx: Context, width: int) -> int:
    return sum(await asyncio.gather(*(ctx.call(one_step, number) for number in range(width))))


@registry.workflow
async def many_at_once(ctx: Context, width: int) -> int:
    return sum(await asyncio.gather(*(count_up(number) for number in range(width))))


@registry.step
async def clock() -> float:
    return time.time()


@registry.workflow
async def sleeper(ctx: Context, milliseconds: int) -> float:
    """Return how late it woke, in seconds; both instants are read in steps, so that replay keeps them."""
    asleep_at = await clock()
    await ctx.sleep(milliseconds / 1000)
    return await clock() - asleep_at - milliseconds / 1000


@registry.workflow
async def long_history(ctx: Context, steps: int) -> str:
    for number in range(steps):
        await count_up(number)
    return await ctx.receive("go", type=str)


async def throughput(hf: Holdfast, request: Request) -> Figures:
    started = time.perf_counter()
    handles = await hf.start_many(five_steps, [(number,) for number in range(request["runs"])])
    results = await asyncio.gather(*(handle.result() for handle in handles))
    took = time.perf_counter() - started
    assert results == [number + STEPS for number in range(request["runs"])]
    return {"per_second": request["runs"] * STEPS / took}


async def tasks(hf: Holdfast, request: Request) -> Figures:
    started = time.perf_counter()
    handles = await hf.start_many(double, [(number,) for number in range(request["count"])])
    await asyncio.gather(*(handle.result() for handle in handles))
    return {"per_second": request["count"] / (time.perf_counter() - started)}


async def step(hf: Holdfast, request: Request) -> Figures:
    return await per_step_async(lambda: hf.execute(many_steps, request["steps"]), request["steps"])


async def start(hf: Holdfast, request: Request) -> Figures:
    return await timed_async(lambda: hf.execute(one_step, 1), request["runs"])


async def message(hf: Holdfast, request: Request) -> Figures:
    runs = await hf.start_many(wait_for_message, [() for _ in range(request["runs"] + 1)])
    await _all_suspended(hf, "wait_for_message")

    async def go() -> None:
        run = runs.pop()
        await run.send("go", "on")
        assert await run.result() == "on"

    return await timed_async(go, request["runs"])


async def children(hf: Holdfast, request: Request) -> Figures:
    return {"seconds": await seconds_async(hf.execute(many_children, request["width"]))}


async def parallel(hf: Holdfast, request: Request) -> Figures:
    return {"seconds": await seconds_async(hf.execute(many_at_once, request["width"]))}


async def timers(hf: Holdfast, request: Request) -> Figures:
    handles = await hf.start_many(sleeper, [(1000 + 20 * number,) for number in range(request["runs"])])
    return lateness(await asyncio.gather(*(handle.result() for handle in handles)))


async def enqueue(hf: Holdfast, request: Request) -> Figures:
    one = await timed_async(lambda: hf.start(double, 1), request["count"])
    wishes = [(number,) for number in range(request["bulk"])]
    took = await seconds_async(hf.start_many(double, wishes))
    return {"single": 1 / one["seconds"], "bulk": request["bulk"] / took}


async def history(hf: Holdfast, request: Request) -> Figures:
    started = time.perf_counter()
    await hf.start(long_history, request["steps"], key="long")
    await _all_suspended(hf, "long_history")
    return {"seconds": (time.perf_counter() - started) / request["steps"]}


def resume(request: Request) -> Figures:
    """Measure from the start of a worker in a fresh process to the end of the run."""

    async def go() -> Figures:
        async with Holdfast(request.url) as hf:
            hf.include(registry)
            run = hf.run(key="long")
            await run.send("go", "on")
            started = time.perf_counter()
            async with hf.worker(concurrency=500):
                await run.result()
                return {"resume": time.perf_counter() - started}

    return asyncio.run(go())


def growth(request: Request) -> Figures:
    async def prepare() -> None:
        async with Holdfast(request.url) as hf:
            hf.include(registry)
            async with hf.worker():
                await hf.execute(one_step, 1)

    asyncio.run(prepare())
    is_sqlite = request.url.startswith("sqlite")
    tables = {"run": ("id",), "intent": ("run_id",), "entry": ("run_id",)}
    schema = {"holdfast.runs": ("id",), "holdfast.entries": ("run_id",)}
    fill(request.url, tables if is_sqlite else schema, request["rows"])
    return working(throughput)(request) | working(start)(request)


def at_rest(request: Request) -> Figures:
    async def rest(hf: Holdfast, request: Request) -> Figures:
        await hf.execute(one_step, 1)
        return await asyncio.to_thread(idle, request["seconds"])

    return working(rest)(request)


async def _all_suspended(hf: Holdfast, type: str) -> None:
    while [run async for run in hf.list(type=type, state=["pending", "running"], limit=1)]:
        await asyncio.sleep(0.02)


def working(measure: Callable[[Holdfast, Request], Awaitable[Figures]]) -> Workload:
    """A workload beside a warmed-up worker."""
    return opened(measure, is_working=True)


def opened(measure: Callable[[Holdfast, Request], Awaitable[Figures]], *, is_working: bool = False) -> Workload:
    async def go(request: Request) -> Figures:
        async with Holdfast(request.url) as hf:
            hf.include(registry)
            await session_of(hf).open()
            if not is_working:
                return await measure(hf, request)
            async with hf.worker(concurrency=500):
                await hf.execute(one_step, 1)
                return await measure(hf, request)

    return lambda request: asyncio.run(go(request))


WORKLOADS: dict[str, Any] = {
    "throughput": working(throughput),
    "tasks": working(tasks),
    "step": working(step),
    "start": working(start),
    "message": working(message),
    "children": working(children),
    "parallel": working(parallel),
    "timers": working(timers),
    "enqueue": opened(enqueue),
    "history": working(history),
    "resume": resume,
    "growth": growth,
    "idle": at_rest,
    "import": importing("from holdfast import Holdfast"),
}

if __name__ == "__main__":
    gc.set_threshold(20_000, 20, 20)  # as `holdfast worker` does, which is not imported: it would load a command line
    Driver(("holdfast", "apsw", "psycopg"), SETUP, WORKLOADS).main()
