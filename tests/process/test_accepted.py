"""Accepting: acknowledged starts exist, and a file is created by many processes at once, or not at all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.process.app import quick
from tests.process.crew import ROOT, Crew, on_every_store

PRODUCER = """
import asyncio, itertools, sys
from holdfast import Holdfast
from tests.process.app import quick

async def main(url, book):
    async with Holdfast(url) as hf:
        for number in itertools.count():
            runs = await hf.start_many(quick, [(book,)] * 3, keys=[f"{number}-{part}" for part in range(3)])
            print(*(run.id for run in runs), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@on_every_store
async def test_acknowledged_starts_of_a_killed_producer_are_kept(crew: Crew, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("wb") as out:
        producer = subprocess.Popen([sys.executable, "-c", PRODUCER, crew.url, crew.book], cwd=ROOT, stdout=out)
    try:
        await crew.until("some runs are started", lambda: said.read_bytes().count(b"\n") > 20)
    finally:
        producer.kill()
        producer.wait()
    promised = set(said.read_text().split())
    await crew.hire()

    found = {info.id async for info in crew.hf.list()}
    await crew.results([crew.hf.run(run_id) for run_id in found])

    assert promised <= found
    assert len(found) % 3 == 0  # all or none
    assert len(found) - len(promised) <= 3


async def test_many_processes_may_create_the_file_at_once(tmp_path: Path) -> None:
    crew = Crew(tmp_path, tmp_path / "new.db")
    try:
        hands = [crew.launch() for _ in range(4)]
        await crew.until("a process has created the file", crew.database.exists)
        async with crew.hf:
            await asyncio.gather(*map(crew.ready, hands))
            results = await crew.results(await crew.hf.start_many(quick, [(crew.book, 2)] * 20))
    finally:
        crew.dismiss()

    assert [len(result) for result in results] == [2] * 20
    assert crew.complaints() == []


async def test_a_worker_that_cannot_open_its_file_ends_with_the_reason(tmp_path: Path) -> None:
    crew = Crew(tmp_path, tmp_path / "nowhere" / "runs.db")
    try:
        hand = crew.launch()
        code = await crew.exited(hand)
    finally:
        crew.dismiss()

    assert code == 1
    last = hand.log.splitlines()[-1]
    assert "StoreUnavailable" in last
    assert "there is no directory" in last
