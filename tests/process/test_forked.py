"""Processes within processes: open objects do not survive a fork, and step bodies may start processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.patience import GUARD_SECONDS
from tests.process.app import nursery, spawning
from tests.process.crew import ROOT, Crew, facts

PRELUDE = """
import asyncio, os, sys
from holdfast import Holdfast, HoldfastError

hf = Holdfast(sys.argv[1])

async def start():
    await hf.start("anything", {})

def in_child(program):
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(program())
            print("it worked", flush=True)
        except HoldfastError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

AFTER_ITS_LOOP = """
asyncio.run(start())
in_child(start)
asyncio.run(start())  # the parent's goes on
asyncio.run(hf.close())
"""

WITHIN_ITS_LOOP = """
async def main():
    async with hf:
        await start()
        in_child(start)
        await start()

asyncio.run(main())
"""

BY_A_HANDLE = """
async def main():
    async with hf:
        run = await hf.start("anything", {})
        in_child(run.info)
        in_child(hf.close)  # does nothing
        await start()

asyncio.run(main())
"""

CLOSED_BEFORE = """
async def main():
    async with hf:
        await start()

asyncio.run(main())
in_child(main)
asyncio.run(main())
"""

NEVER_OPENED = """
in_child(start)
"""


def said(script: str, database: Path) -> str:
    """Return the output of a program, which must succeed without complaints."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, f"sqlite:///{database}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("script", [AFTER_ITS_LOOP, WITHIN_ITS_LOOP, BY_A_HANDLE])
def test_a_database_opened_before_a_fork_refuses_to_work_after_it(script: str, tmp_path: Path) -> None:
    answer = said(script, tmp_path / "runs.db")

    assert "another process" in answer
    assert "fork" in answer


@pytest.mark.parametrize("script", [CLOSED_BEFORE, NEVER_OPENED])
def test_an_object_that_is_not_open_may_be_opened_after_a_fork(script: str, tmp_path: Path) -> None:
    assert said(script, tmp_path / "runs.db") == "it worked"


async def test_step_bodies_may_start_processes(crew: Crew) -> None:
    worker = await crew.hire()

    assert await crew.result(await crew.hf.start(spawning)) == [42, 42, 42, 42]
    worker.leave()
    assert await crew.exited(worker) == 0


async def test_children_of_a_killed_worker_do_not_delay_the_takeover(crew: Crew) -> None:
    run = await crew.hf.start(nursery, crew.book, str(crew.gate()))
    killed = await crew.hire(lease=crew.mortal_lease)
    left = Path(f"{crew.book}.children")
    await crew.until("the children are there", left.exists)
    children = [int(pid) for pid in left.read_text().split()]
    try:
        killed.kill()
        crew.gate().touch()
        heir = await crew.hire()
        await crew.result(run)
        assert all(is_alive(child) for child in children)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)

    assert crew.executions(run, "raise") == [killed.number, heir.number]
    assert [fact.data.get("lost") for fact in await facts(run, "claimed")] == [None, killed.worker_id]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
