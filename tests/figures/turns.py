"""Delay of a write where two processes write to one SQLite file all the time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.stores.sqlite import SqliteStore
from tests.figures.series import report
from tests.unit.stores.long.test_sqlite_processes import process, read_line, say

WRITES = 500
LIMIT_SECONDS = 2.0

WRITER = """
async def main():
    store = SqliteStore(path)
    await store.open()
    first, count = int(sys.argv[2]), int(sys.argv[3])
    say("ready")
    read_line()
    took = []
    for number in range(first, first + count):
        begun = time.monotonic()
        await start(store, an_intent(number))
        took.append(time.monotonic() - begun)
    say(*took)
    await store.close()

asyncio.run(main())
"""


async def test_two_processes_take_turns_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.open()
    with process(WRITER, path, 0, WRITES) as one, process(WRITER, path, 1_000, WRITES) as two:
        for writer in (one, two):
            assert await asyncio.to_thread(read_line, writer) == "ready"
        for writer in (one, two):
            say(writer, "go")
        lines = [await asyncio.to_thread(read_line, writer) for writer in (one, two)]
    await store.close()
    took = [float(seconds) for line in lines for seconds in line.split()]

    report(f"{len(took):,} writes:", took, unit="ms")
    assert max(took) < LIMIT_SECONDS
