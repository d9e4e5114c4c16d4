"""A full disk: a worker logs it once, keeps its runs, and continues when there is space."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import RunHandle, StoreUnavailable
from holdfast.app import session_of
from holdfast.core.questions import CountRuns
from tests.process.app import quick, story
from tests.process.crew import LONG_LEASE_SECONDS, Crew, Hand, facts, marks

LEASE_SECONDS = 1.0
OUTAGE_SECONDS = 1.5
"""Longer than the lease, which must not be lost: there is no other worker to take over."""

TROUBLES = ("cannot write", "cannot claim", "cannot renew")


@contextmanager
def unable_to_grow_files(crew: Crew, hand: Hand) -> Iterator[None]:
    """Prevent a worker process, from outside, from growing any file beyond the current write-ahead log."""
    wal = crew.database.with_name(crew.database.name + "-wal")
    soft, hard = resource.prlimit(hand.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(hand.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size, hard))
    yield
    if hand.is_alive:
        resource.prlimit(hand.pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a disk to the last byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    yield
    filler.unlink()


async def last_through(crew: Crew, hand: Hand) -> None:
    """Wait for longer than a lease, until every operation of the worker has failed."""
    await asyncio.sleep(OUTAGE_SECONDS)
    for trouble in TROUBLES:
        await crew.said(hand, trouble)


async def check_nothing_was_lost(crew: Crew, hand: Hand, held: RunHandle[list[str]]) -> None:
    """Check that one worker with one lease executed each step once, and did not repeat its log lines."""
    assert await crew.result(held) == list((await marks(held)).values())
    assert crew.executions(held, "middle") == [hand.number]
    assert len(await facts(held, "claimed")) == 1
    for words in (*TROUBLES, "writing works again", "claiming works again"):
        assert hand.log.count(words) == 1, words
    assert hand.is_alive


async def test_a_worker_that_cannot_write_continues_when_it_can(crew: Crew) -> None:
    worker = await crew.hire(lease=LEASE_SECONDS)
    held = await crew.hf.start(story, crew.book, str(crew.gate()))
    await crew.begun(held, "middle", worker)

    with unable_to_grow_files(crew, worker):
        crew.gate().touch()
        accepted = await crew.hf.start_many(quick, [(crew.book, 2)] * 5)  # this process may write
        await last_through(crew, worker)

    assert [len(result) for result in await crew.results(accepted)] == [2] * 5
    await check_nothing_was_lost(crew, worker, held)


async def test_a_worker_that_could_not_give_back_its_runs_is_replaced_at_once(crew: Crew) -> None:
    worker = await crew.hire(grace=0, lease=LONG_LEASE_SECONDS)
    held = await crew.hf.start(story, crew.book, str(crew.gate()))
    await crew.begun(held, "middle", worker)

    with unable_to_grow_files(crew, worker):
        worker.leave()
        assert await crew.exited(worker) == 0
    crew.gate().touch()
    heir = await crew.hire()

    await crew.result(held)
    assert [fact.data.get("lost") for fact in await facts(held, "claimed")] == [None, worker.worker_id]
    assert crew.executions(held, "middle") == [worker.number, heir.number]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk takes the right to mount: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest_asyncio.fixture
async def cramped(tmp_path: Path, small_disk: Path) -> AsyncIterator[Crew]:
    """A crew whose database is on a small disk."""
    crew = Crew(tmp_path, small_disk / "runs.db")
    async with crew.hf:
        try:
            yield crew
        finally:
            crew.dismiss()


async def start_more(crew: Crew, accepted: list[RunHandle[list[str]]]) -> None:
    """Start runs until the free space inside the SQLite file is used up."""
    while True:
        accepted += await crew.hf.start_many(quick, [(crew.book, 2)] * 5, delay=1)


async def test_a_full_disk_refuses_starts_and_loses_nothing(cramped: Crew, small_disk: Path) -> None:
    crew = cramped
    worker = await crew.hire(lease=LEASE_SECONDS)
    held = await crew.hf.start(story, crew.book, str(crew.gate()))
    await crew.begun(held, "middle", worker)
    accepted = await crew.hf.start_many(quick, [(crew.book, 2)] * 5, delay=1)

    with full(small_disk):
        crew.gate().touch()
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await start_more(crew, accepted)
        await last_through(crew, worker)

    assert [len(result) for result in await crew.results(accepted)] == [2] * len(accepted)
    await check_nothing_was_lost(crew, worker, held)
    counts = await session_of(crew.hf).store.stats(CountRuns())
    assert sum(counts["quick"].values()) == len(accepted)  # refused starts left nothing
    assert os.statvfs(small_disk).f_bavail > 0
