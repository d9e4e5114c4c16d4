"""A database outage under load: workers survive, continue when it is back, and repeat nothing.

`HOLDFAST_PROCESS_SECONDS` makes it happen more often and last longer.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest_asyncio

from holdfast import RunHandle, RunState
from holdfast.app import session_of
from holdfast.core.questions import FindOrphans
from tests.duration import lasting
from tests.faults.app import insist
from tests.postgres import Databases, PostgresServer
from tests.process.app import quick
from tests.process.crew import LONG_LEASE_SECONDS, Crew, Hand, facts, warnings_of

SECONDS = float(os.environ.get("HOLDFAST_PROCESS_SECONDS", "8"))
ROUNDS = max(1, round(SECONDS / 40))
AWAY_SECONDS = min(10.0, SECONDS / 4)
STEPS = 5

LOST, BACK = "lost the database", "the database is back"


@pytest_asyncio.fixture
async def crew(postgres_server: PostgresServer, tmp_path: Path) -> AsyncIterator[Crew]:
    """A crew on its own server, which may be stopped."""
    with Databases(postgres_server.url) as databases, databases.lend() as url:
        crew = Crew(tmp_path, url=url, lease=LONG_LEASE_SECONDS)
        try:
            async with crew.hf:
                yield crew
                assert await session_of(crew.hf).store.stats(FindOrphans(limit=10)) == []
        finally:
            crew.dismiss()
            if postgres_server.pid is None:
                postgres_server.start()
            sys.stdout.write(crew.report("the end of the test"))
        assert crew.complaints() == []


@lasting(SECONDS)
async def test_workers_survive_an_outage_of_their_database(crew: Crew, postgres_server: PostgresServer) -> None:
    def crash() -> None:
        postgres_server.kill()
        time.sleep(AWAY_SECONDS)
        postgres_server.start()

    blows: list[Callable[[], None]] = [postgres_server.restart, crash]
    if ROUNDS > 1:
        blows.append(partial(postgres_server.restart, "immediate"))
    workers = await asyncio.gather(*(crew.hire(concurrency=10) for _ in range(2)))
    runs: list[RunHandle[list[str]]] = []
    is_over = asyncio.Event()

    async def produce() -> None:
        while not is_over.is_set():
            start = partial(crew.hf.start, quick, crew.book, STEPS, 0.02, key=f"run {len(runs)}")
            runs.append(await insist(start))
            await asyncio.sleep(0.02)

    async def disturb() -> None:
        for blow in blows * ROUNDS:
            await progress(crew, workers)
            await asyncio.to_thread(blow)
        await progress(crew, workers)
        is_over.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(disturb())
    results = await crew.results(runs)

    assert [len(result) for result in results] == [STEPS] * len(runs)
    executions = crew.ledger.executions()
    assert len(executions) == STEPS * len(runs)
    assert {len(deeds) for deeds in executions.values()} == {1}  # no process died, so nothing was repeated
    for run in runs:
        assert ((await run.info()).state, len(await facts(run, "succeeded"))) == (RunState.SUCCEEDED, 1)
    for worker in workers:
        assert worker.is_alive
        losses = [LOST in line for line in worker.log.splitlines() if LOST in line or BACK in line]
        assert losses == [True, False] * (len(losses) // 2)
        assert len(losses) == len(warnings_of(worker))  # one line for each change


async def progress(crew: Crew, workers: list[Hand]) -> None:
    """Wait until each worker has executed something new."""
    before = {worker.pid: count_of(crew, worker) for worker in workers}
    for worker in workers:
        await crew.until(
            f"worker {worker.number} goes on", partial(has_more, crew, worker, before[worker.pid] + 2 * STEPS)
        )


def has_more(crew: Crew, worker: Hand, than: int) -> bool:
    return count_of(crew, worker) > than


def count_of(crew: Crew, worker: Hand) -> int:
    return sum(deed.pid == worker.pid for deed in crew.ledger.deeds("ended"))
