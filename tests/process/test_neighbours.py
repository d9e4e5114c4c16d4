"""A producer here, a worker there: what one does the other hears of at once, though both have been idle."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from holdfast import RunCancelled
from tests.process.app import letter, quick, story
from tests.process.crew import Crew, on_every_store

IDLE_SECONDS = 1.5
TIMES = 5


async def median(crew: Crew, what: str, act: Callable[[], Awaitable[object]]) -> float:
    """How long something takes, each time after a while in which nothing happened."""
    took = []
    for number in range(TIMES):
        await asyncio.sleep(IDLE_SECONDS if number == 0 else 0.2)  # so that whatever backs off has done so
        begun = time.monotonic()
        await act()
        took.append(time.monotonic() - begun)
    sys.stdout.write(f"{what}: p50 {statistics.median(took) * 1000:.1f} ms, most {max(took) * 1000:.1f} ms\n")
    return statistics.median(took)


@on_every_store
async def test_a_start_here_is_executed_there_without_delay(crew: Crew) -> None:
    await crew.hire()

    async def act() -> None:
        await crew.result(await crew.hf.start(quick, crew.book))

    assert await median(crew, "start to result", act) < 0.5


@on_every_store
async def test_a_message_from_here_wakes_a_run_there_without_delay(crew: Crew) -> None:
    await crew.hire()

    async def asleep() -> None:
        run = await crew.hf.start(letter)
        await crew.until("the run waits", lambda: waits(run.id))
        runs.append(run.id)

    async def waits(run_id: str) -> bool:
        return (await crew.hf.run(run_id).info()).state == "suspended"

    async def act() -> None:
        run = crew.hf.run(runs.pop())
        await run.send("word", "hello")
        assert await crew.result(run) == "hello"

    runs: list[str] = []
    for _ in range(TIMES):
        await asleep()
    assert await median(crew, "message to result", act) < 0.5


@on_every_store
async def test_a_cancel_from_here_cancels_the_body_there(crew: Crew) -> None:
    worker = await crew.hire()
    run = await crew.hf.start(story, crew.book, str(crew.gate()), "hang")
    await crew.begun(run, "middle", worker)
    await asyncio.sleep(IDLE_SECONDS)

    assert await run.cancel("no longer wanted")
    await crew.until("the body is cancelled", lambda: bool(crew.ledger.deeds("cancelled", run.id)), 2)

    with pytest.raises(RunCancelled, match="no longer wanted"):
        await crew.result(run)
    assert [entry.location for entry in await run.history()] == ["first"]
