"""A producer and a worker in different processes: each notices the other's changes without polling."""

from __future__ import annotations

import pytest

from holdfast import RunCancelled
from tests.process.app import letter, quick, story
from tests.process.crew import Crew, on_every_store

TIMES = 5


@on_every_store
async def test_a_start_in_one_process_is_executed_in_another(crew: Crew) -> None:
    await crew.hire(hints_only=1)

    for _ in range(TIMES):
        assert len(await crew.result(await crew.hf.start(quick, crew.book))) == 1


@on_every_store
async def test_a_message_from_one_process_wakes_a_run_in_another(crew: Crew) -> None:
    await crew.hire(hints_only=1)

    for number in range(TIMES):
        run = await crew.hf.start(letter)
        await crew.until("the run waits", lambda run_id=run.id: waits(crew, run_id))  # type: ignore[misc]
        await run.send("word", number)
        assert await crew.result(run) == number


async def waits(crew: Crew, run_id: str) -> bool:
    return (await crew.hf.run(run_id).info()).state == "suspended"


@on_every_store
async def test_a_cancel_from_one_process_cancels_the_body_in_another(crew: Crew) -> None:
    worker = await crew.hire(hints_only=1)
    run = await crew.hf.start(story, crew.book, str(crew.gate()), "hang")
    await crew.begun(run, "middle", worker)

    assert await run.cancel("no longer wanted")
    await crew.until("the body is cancelled", lambda: bool(crew.ledger.deeds("cancelled", run.id)))

    with pytest.raises(RunCancelled, match="no longer wanted"):
        await crew.result(run)
    assert [entry.location for entry in await run.history()] == ["first"]
