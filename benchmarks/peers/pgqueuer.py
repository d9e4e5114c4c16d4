"""PgQueuer, a task queue on Postgres: it has neither steps nor results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg
import uvloop
from pgqueuer import Job, PgQueuer

from benchmarks.peers.driver import Driver, Figures, Request, Workload, idle, importing, seconds_async, timed_async

BATCH = 100
POOL = 10

SETUP = f"""
    One process: `PgQueuer.from_asyncpg_pool` with {POOL} connections, `run(batch_size={BATCH})`, async entrypoints,
    LISTEN/NOTIFY, uvloop. The tables have its default durability. It keeps no results: start to result ends when the
    body has run, before that is recorded; tasks end when the queue is empty. Bulk is `enqueue` of lists.
"""


class Jobs:
    """The application, and the record of its only entrypoint."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.app = PgQueuer.from_asyncpg_pool(pool)
        self.queries = self.app.qm.queries
        self.done: dict[bytes, asyncio.Future[bytes]] = {}
        self.count = 0

        @self.app.entrypoint("double")
        async def double(job: Job) -> None:
            self.count += 1
            if job.payload in self.done:
                self.done.pop(job.payload).set_result(job.payload * 2)

    async def execute(self, payload: bytes) -> bytes:
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.done[payload] = done
        await self.queries.enqueue("double", payload)
        return await done

    async def enqueue_many(self, count: int) -> None:
        await self.queries.enqueue(["double"] * count, [b"many"] * count, [0] * count)


async def tasks(jobs: Jobs, request: Request) -> Figures:
    started = time.perf_counter()
    wanted = jobs.count + request["count"]
    await jobs.enqueue_many(request["count"])
    while jobs.count < wanted:
        await asyncio.sleep(0.01)
    while await jobs.queries.queue_size():
        await asyncio.sleep(0.02)
    return {"per_second": request["count"] / (time.perf_counter() - started)}


async def start(jobs: Jobs, request: Request) -> Figures:
    return await timed_async(lambda: jobs.execute(b"one"), request["runs"])


async def enqueue(jobs: Jobs, request: Request) -> Figures:
    one = await timed_async(lambda: jobs.queries.enqueue("double", b"one"), request["count"])
    took = await seconds_async(jobs.enqueue_many(request["bulk"]))
    return {"single": 1 / one["seconds"], "bulk": request["bulk"] / took}


async def at_rest(jobs: Jobs, request: Request) -> Figures:
    return await asyncio.to_thread(idle, request["seconds"])


def opened(measure: Callable[[Jobs, Request], Awaitable[Figures]], *, is_working: bool = True) -> Workload:
    async def go(request: Request) -> Figures:
        url = request.url.partition("?")[0]  # asyncpg supports none of libpq's options
        async with asyncpg.create_pool(url, min_size=2, max_size=POOL) as pool:
            jobs = Jobs(pool)
            await jobs.queries.install()
            if not is_working:
                return await measure(jobs, request)
            worker = asyncio.create_task(jobs.app.run(batch_size=BATCH))
            await jobs.execute(b"first")
            found = await measure(jobs, request)
            jobs.app.shutdown.set()
            await asyncio.wait([worker], timeout=10)
            return found

    return lambda request: uvloop.run(go(request))


WORKLOADS: dict[str, Workload] = {
    "tasks": opened(tasks),
    "start": opened(start),
    "enqueue": opened(enqueue, is_working=False),
    "idle": opened(at_rest),
    "import": importing("import pgqueuer"),
}

if __name__ == "__main__":
    Driver(("pgqueuer", "asyncpg"), SETUP, WORKLOADS).main()
