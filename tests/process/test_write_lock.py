"""A stopped process holds the write lock of the database."""

from __future__ import annotations

import asyncio

from tests.process.app import quick, story
from tests.process.crew import LONG_LEASE_SECONDS, Crew, facts


async def test_a_worker_waits_for_the_lock_and_continues(crew: Crew) -> None:
    lease = 1.0
    worker = await crew.hire(lease=lease)
    run = await crew.hf.start(story, crew.book, str(crew.gate()))
    await crew.begun(run, "middle", worker)

    with crew.nobody_writing():
        crew.gate().touch()
        await crew.until("the body has ended", lambda: bool(crew.ledger.deeds("ended", run.id, "middle")))
        await asyncio.sleep(3 * lease)

    await crew.result(run)
    assert crew.executions(run, "middle") == [worker.number]
    assert len(await facts(run, "claimed")) == 1
    assert len(await crew.result(await crew.hf.start(quick, crew.book))) == 1


async def test_a_worker_ends_even_if_it_cannot_give_back_its_runs(crew: Crew) -> None:
    worker = await crew.hire(grace=0, lease=LONG_LEASE_SECONDS)
    run = await crew.hf.start(story, crew.book, str(crew.gate()))
    await crew.begun(run, "middle", worker)

    with crew.nobody_writing():
        worker.leave()
        assert await crew.exited(worker) == 0
    crew.gate().touch()
    heir = await crew.hire()

    await crew.result(run)
    assert crew.executions(run, "middle") == [worker.number, heir.number]
