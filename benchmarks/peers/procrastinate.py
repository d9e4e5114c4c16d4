"""Procrastinate, a task queue on Postgres: it has neither steps nor results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.peers.driver import Driver, Figures, Request, Workload, idle, importing, seconds_async, timed_async

CONCURRENCY = 20

SETUP = f"""
    One process: `run_worker_async(concurrency={CONCURRENCY})`, async tasks, LISTEN/NOTIFY, a connection pool of
    {CONCURRENCY}. It keeps no results: start to result ends when the body has run, before that is recorded; tasks end
    when no job is left. Bulk is `batch_defer_async`.
"""


class Jobs:
    """The application, and the record of its only task."""

    def __init__(self, url: str) -> None:
        self.app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=CONCURRENCY))
        self.done: dict[int, asyncio.Future[int]] = {}
        self.count = 0

        @self.app.task(name="double")
        async def double(number: int) -> None:
            self.count += 1
            if number in self.done:
                self.done.pop(number).set_result(number * 2)

        self.double: Any = double

    async def execute(self, number: int) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.done[number] = done
        await self.double.defer_async(number=number)
        return await done

    async def until_all_ended(self, count: int) -> None:
        while self.count < count:
            await asyncio.sleep(0.01)
        while list(await self.app.job_manager.list_jobs_async(status="doing")):
            await asyncio.sleep(0.01)


async def tasks(jobs: Jobs, request: Request) -> Figures:
    started = time.perf_counter()
    before = jobs.count
    await jobs.double.batch_defer_async(*({"number": -number} for number in range(1, request["count"] + 1)))
    await jobs.until_all_ended(before + request["count"])
    return {"per_second": request["count"] / (time.perf_counter() - started)}


async def start(jobs: Jobs, request: Request) -> Figures:
    return await timed_async(lambda: jobs.execute(1), request["runs"])


async def enqueue(jobs: Jobs, request: Request) -> Figures:
    one = await timed_async(lambda: jobs.double.defer_async(number=-1), request["count"])
    wishes = [{"number": -1} for _ in range(request["bulk"])]
    took = await seconds_async(jobs.double.batch_defer_async(*wishes))
    return {"single": 1 / one["seconds"], "bulk": request["bulk"] / took}


async def at_rest(jobs: Jobs, request: Request) -> Figures:
    return await asyncio.to_thread(idle, request["seconds"])


def opened(measure: Callable[[Jobs, Request], Awaitable[Figures]], *, is_working: bool = True) -> Workload:
    async def go(request: Request) -> Figures:
        jobs = Jobs(request.url)
        async with jobs.app.open_async():
            await jobs.app.schema_manager.apply_schema_async()
            if not is_working:
                return await measure(jobs, request)
            options = {"concurrency": CONCURRENCY, "install_signal_handlers": False}
            worker = asyncio.create_task(jobs.app.run_worker_async(**options))
            await jobs.execute(1)
            found = await measure(jobs, request)
            worker.cancel()
            await asyncio.wait([worker], timeout=10)
            return found

    return lambda request: asyncio.run(go(request))


WORKLOADS: dict[str, Workload] = {
    "tasks": opened(tasks),
    "start": opened(start),
    "enqueue": opened(enqueue, is_working=False),
    "idle": opened(at_rest),
    "import": importing("import procrastinate"),
}

if __name__ == "__main__":
    Driver(("procrastinate", "psycopg"), SETUP, WORKLOADS).main()
