"""Latency of a request to another process, after both have been idle."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pytest

from holdfast import RunCancelled
from holdfast.core.news import Hint
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.patience import guarded
from tests.figures.series import measured, report
from tests.process.app import letter, quick, story
from tests.process.crew import Crew, on_every_store
from tests.unit.stores.long.test_sqlite_processes import process, read_line, say

TIMES = 9
BACKOFF_SECONDS = 1.5
"""Time after which every backoff has reached its limit."""
LIMIT_SECONDS = 0.5
CANCEL_SECONDS = 2.0
HINT_SECONDS = 0.005

EMITTER = """
async def main():
    store = SqliteStore(path)
    await store.open()
    say("ready")
    number = 0
    while read_line():
        number += 1
        await start(store, an_intent(number))
        say(time.monotonic_ns())
    await store.close()

asyncio.run(main())
"""


@on_every_store
async def test_a_start_is_executed_elsewhere(crew: Crew) -> None:
    await crew.hire()
    await asyncio.sleep(BACKOFF_SECONDS)

    async def execution() -> float:
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        await crew.result(await crew.hf.start(quick, crew.book))
        return time.monotonic() - begun

    took = await measured(TIMES, execution)

    report("start to result", took, unit="ms")
    assert statistics.median(took) < LIMIT_SECONDS


@on_every_store
async def test_a_message_wakes_a_run_elsewhere(crew: Crew) -> None:
    await crew.hire()

    async def delivery() -> float:
        run = await crew.hf.start(letter)
        await crew.until("the run waits", lambda: waits(crew, run.id))
        await asyncio.sleep(BACKOFF_SECONDS)
        begun = time.monotonic()
        await run.send("word", "hello")
        await crew.result(run)
        return time.monotonic() - begun

    took = await measured(TIMES, delivery)

    report("message to result", took, unit="ms")
    assert statistics.median(took) < LIMIT_SECONDS


async def waits(crew: Crew, run_id: str) -> bool:
    return (await crew.hf.run(run_id).info()).state == "suspended"


@on_every_store
async def test_a_cancel_ends_a_body_elsewhere(crew: Crew) -> None:
    worker = await crew.hire()

    async def ending() -> float:
        run = await crew.hf.start(story, crew.book, str(crew.gate()), "hang")
        await crew.begun(run, "middle", worker)
        await asyncio.sleep(BACKOFF_SECONDS)
        begun = time.monotonic()
        await run.cancel()
        await crew.until("the body is cancelled", lambda: bool(crew.ledger.deeds("cancelled", run.id)))
        took = time.monotonic() - begun
        with pytest.raises(RunCancelled):
            await crew.result(run)
        return took

    took = await measured(TIMES, ending)

    report("cancel to the end of the body", took, unit="ms")
    assert max(took) < CANCEL_SECONDS


async def test_a_commit_is_noticed_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.open()
    noticed: asyncio.Queue[int] = asyncio.Queue()

    def listener(_: Hint) -> None:
        noticed.put_nowait(time.monotonic_ns())

    with process(EMITTER, path) as emitter:
        assert await asyncio.to_thread(read_line, emitter) == "ready"
        stop = store.listen(listener)
        await asyncio.sleep(BACKOFF_SECONDS)

        async def hint() -> float:
            say(emitter, "go")
            committed_at = int(await asyncio.to_thread(read_line, emitter))
            noticed_at = await guarded("the commit is noticed", noticed.get())
            await asyncio.sleep(0.05)
            return (noticed_at - committed_at) / 1e9

        took = await measured(TIMES, hint)
        stop()
    await store.close()

    report("commit to hint", took, unit="ms")
    assert statistics.median(took) < HINT_SECONDS
