"""`holdfast worker --processes N`: a process that dies is replaced, all stop together, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import Holdfast
from holdfast.app import session_of
from holdfast.testing.patience import GUARD_SECONDS, until

APPLICATION = """
import asyncio
import os
from pathlib import Path
from holdfast import Holdfast

hf = Holdfast()

@hf.task("whoami")
async def whoami() -> int:
    return os.getpid()

@hf.task("slow")
async def slow(gate: str) -> int:
    Path(f"begun-{gate}").touch()
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return os.getpid()
"""


class Firm:
    """A supervisor process in a directory with an application, and a producer beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.hf = Holdfast(f"sqlite:///{folder / 'shop.db'}")
        self.supervisor: subprocess.Popen[bytes]
        (folder / "app.py").write_text(APPLICATION)

    def open(self, *options: str, target: str = "app:hf", url: str | None = None) -> subprocess.Popen[bytes]:
        """Start the supervisor."""
        with self.log.open("wb") as log:
            self.supervisor = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "worker", target, *options],
                cwd=self.folder,
                env=os.environ | {"HOLDFAST_URL": url or session_of(self.hf).url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.supervisor

    async def staffed(self, number: int, without: frozenset[int] = frozenset()) -> frozenset[int]:
        """Wait until there are this many worker processes, not counting some; return their process ids."""
        await session_of(self.hf).open()
        found: frozenset[int] = frozenset()

        async def is_so() -> bool:
            nonlocal found
            found = frozenset(worker.pid for worker in await session_of(self.hf).store.workers()) - without
            return len(found) == number

        await self.until(f"there are {number} worker processes", is_so)
        return found

    async def until(self, what: str, is_so: Callable[[], bool | Awaitable[bool]]) -> None:
        await until(what, is_so, report=self.report)

    async def begun(self, gate: str) -> None:
        await self.until(f"{gate} has begun", (self.folder / f"begun-{gate}").exists)

    async def ended(self) -> int:
        """Wait until the supervisor has ended; return its exit code."""
        await self.until("the supervisor has ended", lambda: self.supervisor.poll() is not None)
        return self.supervisor.wait()

    def said(self) -> str:
        return self.log.read_text()

    def report(self, what: str) -> str:
        return f"{what}\n{self.said()}"


@pytest_asyncio.fixture
async def firm(tmp_path: Path) -> AsyncIterator[Firm]:
    firm = Firm(tmp_path)
    async with firm.hf:
        yield firm
        if firm.supervisor.poll() is None:
            firm.supervisor.terminate()
            try:
                firm.supervisor.wait(GUARD_SECONDS)
            finally:
                firm.supervisor.kill()
        sys.stdout.write(firm.report("the end of the test"))
        assert "Traceback" not in firm.said()


def is_alive(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="only Linux shows what a process was started with")
async def test_the_url_with_its_password_is_not_visible_in_the_process_list(firm: Firm) -> None:
    firm.open("--processes", "2")

    workers = await firm.staffed(2)

    assert [b"shop.db" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers] == [False, False]


async def test_a_process_that_is_killed_is_replaced_and_its_work_continues(firm: Firm) -> None:
    firm.open("--processes", "2")
    before = await firm.staffed(2)
    run = await firm.hf.start("slow", {"gate": "g"})
    await firm.begun("g")
    (holder,) = {
        worker.pid for worker in await session_of(firm.hf).store.workers() if worker.id == (await _holder(firm, run.id))
    }

    os.kill(holder, signal.SIGKILL)
    (firm.folder / "g").touch()

    assert await run.result(timeout=GUARD_SECONDS) != holder
    after = await firm.staffed(2, without=frozenset({holder}))
    assert len(after & before) == 1
    assert f"(pid {holder}) was killed by SIGKILL; starting another one now" in firm.said()


async def _holder(firm: Firm, run_id: str) -> str | None:
    details = await session_of(firm.hf).store.get(run_id)
    assert details is not None
    return details.run.worker


async def test_a_signal_stops_all_processes_after_their_steps_have_ended(firm: Firm) -> None:
    firm.open("--processes", "2", "--grace", "60s")
    pids = await firm.staffed(2)
    run = await firm.hf.start("slow", {"gate": "g"})
    await firm.begun("g")

    firm.supervisor.terminate()
    await firm.staffed(1)
    (firm.folder / "g").touch()

    assert await firm.ended() == 0
    assert await run.result(timeout=GUARD_SECONDS) in pids
    assert not any(map(is_alive, pids))
    assert await session_of(firm.hf).store.workers() == []


async def test_a_second_signal_ends_the_grace(firm: Firm) -> None:
    firm.open("--processes", "2", "--grace", "600s")
    pids = await firm.staffed(2)
    run = await firm.hf.start("slow", {"gate": "g"})
    await firm.begun("g")

    firm.supervisor.send_signal(signal.SIGINT)
    await firm.staffed(1)
    firm.supervisor.send_signal(signal.SIGINT)

    assert await firm.ended() == 0
    assert not any(map(is_alive, pids))
    assert (await run.info()).state == "pending"  # given back, and not charged with a crash


async def test_a_service_manager_may_signal_every_process_and_the_grace_still_counts(firm: Firm) -> None:
    firm.open("--processes", "2", "--grace", "600s")
    pids = await firm.staffed(2)
    run = await firm.hf.start("slow", {"gate": "g"})
    await firm.begun("g")

    for pid in (firm.supervisor.pid, *pids, *pids):
        os.kill(pid, signal.SIGTERM)
    await firm.staffed(1)
    (firm.folder / "g").touch()

    assert await firm.ended() == 0
    assert await run.result(timeout=GUARD_SECONDS) in pids


async def test_no_process_outlives_a_supervisor_that_is_killed(firm: Firm) -> None:
    firm.open("--processes", "2", "--grace", "600s")
    pids = await firm.staffed(2)
    run = await firm.hf.start("slow", {"gate": "g"})
    await firm.begun("g")

    firm.supervisor.kill()
    await firm.staffed(1)
    (firm.folder / "g").touch()

    await firm.until("all processes have ended", lambda: not any(map(is_alive, pids)))
    assert await run.result(timeout=GUARD_SECONDS) in pids


async def test_a_process_that_is_stopped_is_replaced_by_a_new_one(firm: Firm) -> None:
    """A rolling restart replaces the processes one by one in this way."""
    firm.open("--processes", "2")
    pids = await firm.staffed(2)
    leaver = min(pids)

    os.kill(leaver, signal.SIGTERM)

    assert len(await firm.staffed(2, without=frozenset({leaver})) & pids) == 1


async def test_all_processes_end_with_until_idle(firm: Firm) -> None:
    runs = await firm.hf.start_many("whoami", [{}] * 20)

    firm.open("--processes", "2", "--until-idle")

    assert await firm.ended() == 0
    for run in runs:
        assert await run.result(timeout=GUARD_SECONDS) > 0
    assert await session_of(firm.hf).store.workers() == []


async def test_each_process_has_its_own_name(firm: Firm) -> None:
    firm.open("--processes", "2", "--name", "wally")
    await firm.staffed(2)

    assert {worker.name for worker in await session_of(firm.hf).store.workers()} == {"wally-1", "wally-2"}


async def test_the_number_of_processes_can_be_set_by_a_variable(firm: Firm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WORKER_PROCESSES", "2")

    firm.open("--until-idle")

    assert await firm.ended() == 0
    assert "2 worker processes under" in firm.said()


@pytest.mark.parametrize(
    ("target", "url", "code", "message"),
    [
        ("nosuch:hf", None, 2, "there is no module 'nosuch'"),
        ("broken:hf", None, 1, "importing 'broken' failed: ZeroDivisionError"),
        ("app:hf", "memory://", 2, "uses a memory store, which processes cannot share"),
        ("app:hf", "sqlite:///nowhere/shop.db", 5, "there is no directory"),
    ],
)
async def test_types_without_a_handler_are_reported_once(
    firm: Firm, target: str, url: str | None, code: int, message: str
) -> None:
    (firm.folder / "broken.py").write_text("1 / 0")

    firm.open("--processes", "3", target=target, url=url)

    assert await firm.ended() == code
    assert firm.said().count(message) == 1
    assert f"the last one ended with exit code {code}" in firm.said()
