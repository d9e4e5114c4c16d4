"""Runs and users' own tables: starts inside a transaction, and a transaction that kills its worker."""

from __future__ import annotations

from holdfast import RunState
from tests.process.app import cashiers, deadly_transaction, make_tables
from tests.process.crew import Crew, on_sql_stores, step


@on_sql_stores
async def test_a_run_started_in_a_transaction_is_executed_elsewhere_at_once(crew: Crew) -> None:
    await crew.hire(hints_only=1)
    with crew.hf.connection() as connection:
        make_tables(connection)
        run = await crew.hf.start_in(connection, cashiers, 3)

    assert await crew.result(run) == [0, 1, 2]


async def test_a_transaction_that_kills_its_worker_uses_up_its_attempts(crew: Crew) -> None:
    run = await crew.hf.start(deadly_transaction)
    for _ in range(2):
        assert await crew.exited(crew.launch(lease=crew.mortal_lease)) == 13
    await crew.hire()
    await crew.until("the run ends", lambda: _has_ended(crew, run.id))

    assert (await run.info()).state is RunState.FAILED
    entry = await step(run, "die")
    assert (entry.kind.value, entry.state.value, entry.attempts) == ("tx", "failed", 2)
    with crew.hf.connection(readonly=True) as connection:
        assert connection.execute("select name from sqlite_master where name = 'trace'").fetchall() == []


async def _has_ended(crew: Crew, run_id: str) -> bool:
    return (await crew.hf.run(run_id).info()).state.is_end
