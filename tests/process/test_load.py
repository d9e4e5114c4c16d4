"""Two workers on one file under load: neither delays the heartbeat of the other, so no lease is ever lost."""

from __future__ import annotations

import asyncio

from holdfast import RunState
from tests.process.app import quick
from tests.process.crew import Crew, facts, on_every_store, warnings_of

LEASE_SECONDS = 6.0
RUNS, STEPS = 300, 5


@on_every_store
async def test_no_lease_is_lost_under_load(crew: Crew) -> None:
    workers = await asyncio.gather(*(crew.hire(lease=LEASE_SECONDS, concurrency=100) for _ in range(2)))
    # These hold long steps, so that there are leases to lose all the time.
    held = await crew.hf.start_many(quick, [(crew.book, 1, 1.5 * LEASE_SECONDS)] * 20)
    runs = await crew.hf.start_many(quick, [(crew.book, STEPS)] * RUNS)

    results = await crew.results([*runs, *held])

    assert sorted(map(len, results)) == [1] * len(held) + [STEPS] * RUNS
    began = crew.ledger.deeds("began")
    assert len(began) == RUNS * STEPS + len(held)  # each body exactly once
    assert {deed.pid for deed in began} == {worker.pid for worker in workers}
    async for info in crew.hf.list():
        assert (info.state, info.attempt) == (RunState.SUCCEEDED, 1)
    for run in held:
        assert len(await facts(run, "claimed")) == 1
    for worker in workers:
        assert worker.is_alive
        assert warnings_of(worker) == []
        assert "taken away" not in worker.log
