"""Ways to send statements to Postgres, compared in turns on one store: driven by the loop, in tasks, and in threads.

python -m benchmarks.postgres_connections [--pairs 20] [--url URL]
"""

# Each way replaces a private part of the store, so that all have the same store, worker and database.
# ruff: noqa: SLF001

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import psycopg

from benchmarks.stores import the_postgres
from holdfast import Holdfast
from holdfast.app import session_of
from holdfast.core.checkpoint import Checkpoint, ClaimRequest, Hold
from holdfast.core.model import Entry, EntryKind, EntryState, Lease
from holdfast.stores.postgres.connections import OWN, Connection
from holdfast.stores.postgres.loop_session import DrivenConnection, LoopSession
from holdfast.stores.postgres.scripts import Script
from holdfast.stores.postgres.store import PostgresStore
from holdfast_bench import measures

STEPS = 200
STARTS = 60
RUNS = 200

Work = Callable[[], Awaitable[int]]
"""Performs an operation and returns the number of repetitions."""


class PlainConnection(DrivenConnection):
    """The driver's connection as it is: each script is a task, and the driver waits for the socket."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop, *, is_prepared: bool) -> None:
        super().__init__(connection, loop, is_prepared=is_prepared, on_loss=lambda _: None)
        loop.remove_reader(self._socket)
        driver = psycopg.AsyncConnection(connection.pgconn)
        driver._autocommit = True
        driver.prepare_threshold = 0 if is_prepared else None
        self._cursor = psycopg.AsyncCursor(driver)
        self._chain_cursor = psycopg.AsyncClientCursor(driver)
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Tasks(LoopSession):
    """Runs each script in a task, on the driver's own connection."""

    def _connected(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_opening = False
        connection = self._take_arrived()
        assert connection is not None
        self._connection = PlainConnection(connection, loop, is_prepared=True)


class Threads(LoopSession):
    """Leaves everything to the sessions in threads."""

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        return


WAYS: dict[str, type[LoopSession]] = {"loop": LoopSession, "tasks": Tasks, "threads": Threads}


class Sample(NamedTuple):
    """Microseconds per operation: elapsed, and CPU time of this process."""

    wall: float
    busy: float


async def sampled(work: Work) -> Sample:
    wall, busy = time.perf_counter(), time.process_time()
    count = await work()
    return Sample((time.perf_counter() - wall) / count * 1e6, (time.process_time() - busy) / count * 1e6)


async def compare(title: str, work: Work, store: PostgresStore, ways: dict[str, LoopSession], pairs: int) -> None:
    """Measure all ways in turns, and print medians: of the times, and of the ratios of neighbours."""
    found: dict[str, list[Sample]] = {name: [] for name in ways}
    for turn in range(pairs + 1):
        for name in ways if turn % 2 else reversed(ways):
            store._loop_session = ways[name]
            sample = await sampled(work)
            if turn:  # the first turn warms up
                found[name].append(sample)
    base = found["loop"]
    for name, samples in found.items():
        wall, busy = (statistics.median(one) for one in zip(*samples, strict=True))
        times = [Sample(one.wall / other.wall, one.busy / other.busy) for one, other in zip(samples, base, strict=True)]
        ratio = Sample(*(statistics.median(one) for one in zip(*times, strict=True)))
        print(
            f"{title:<18} {name:<7} {wall:8.0f} µs, CPU {busy:6.0f} µs = {ratio.wall:.2f} and {ratio.busy:.2f} × loop",
            flush=True,
        )


async def opened(store: PostgresStore, way: type[LoopSession]) -> LoopSession:
    """A session that is connected, if it ever is."""
    session = way(store._connector, store._writers, limits=OWN)
    while session._connection is None and way is not Threads:
        await session.run(_look)
        await asyncio.sleep(0.01)
    return session


def _look() -> Script[str]:
    answer: str = yield b"select '1'", ()
    return answer


async def leased(hf: Holdfast, store: PostgresStore) -> Lease:
    """A run held by this process: there is no worker yet."""
    await hf.start(measures.wait_for_message)
    types = (measures.wait_for_message.type,)
    python = platform.python_version()
    claimed = await store.claim(
        ClaimRequest(id="bench", worker="bench", types=types, limit=1, lease=10**10, python=python)
    )
    return claimed.leases[0]


async def write_step(store: PostgresStore, lease: Lease, position: int) -> None:
    """A checkpoint with one entry."""
    step = Entry(location=f"step#{position}", kind=EntryKind.STEP, state=EntryState.DONE, position=position, result="1")
    told = await store.checkpoint(
        [Checkpoint(run_id=lease.run.id, token=lease.run.token, seen=0, next=Hold(), entries=(step,))]
    )
    assert told.verdicts[0].is_held


async def measure(url: str, pairs: int) -> None:
    async with Holdfast(url) as hf:
        hf.include(measures.registry)
        await session_of(hf).open()
        store = session_of(hf).store
        assert isinstance(store, PostgresStore)
        usual = store._loop_session
        ways = {name: await opened(store, way) for name, way in WAYS.items()}
        lease, written = await leased(hf, store), 0

        async def steps() -> int:
            nonlocal written
            for _ in range(STEPS):
                written += 1
                await write_step(store, lease, written)
            return STEPS

        async def starts() -> int:
            for _ in range(STARTS):
                await hf.execute(measures.one_step)
            return STARTS

        async def at_once() -> int:
            await asyncio.gather(*(hf.execute(measures.one_step) for _ in range(RUNS)))
            return RUNS

        await compare("lone step", steps, store, ways, pairs)
        async with hf.worker(types=[measures.one_step.type], concurrency=RUNS):
            await compare("start to result", starts, store, ways, pairs)
            await compare(f"{RUNS} runs at once", at_once, store, ways, pairs)
            store._loop_session = usual
        for session in ways.values():
            await session.stop()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="how often each way is measured")
    parser.add_argument("--url", help="a Postgres server that may be used (databases are created), not a private one")
    given = parser.parse_args(arguments)
    with the_postgres(given.url) as server, server.place() as url:
        print(
            f"Python {platform.python_version()}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__}); "
            f"a bare commit takes {server.bare_commit_seconds() * 1e6:.0f} µs",
            flush=True,
        )
        asyncio.run(measure(url, given.pairs))


if __name__ == "__main__":
    main()
