"""The crew: worker processes on one store, and the producer in this process that gives them work."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast import Holdfast, RunHandle
from holdfast.app import session_of
from holdfast.core.model import EntryKind
from holdfast.testing.patience import GUARD_SECONDS, until
from holdfast.typing import AuditInfo, EntryInfo
from tests.process.app import workflows
from tests.process.ledger import Deed, Ledger
from tests.stage import SLOWNESS

ROOT = Path(__file__).parents[2]
on_every_store = pytest.mark.parametrize("crew", ["sqlite", "postgres", "redis"], indirect=True)
"""Parameter for tests that run on an SQLite file, on a Postgres server and on a Redis server."""
on_sql_stores = pytest.mark.parametrize("crew", ["sqlite", "postgres"], indirect=True)
"""Parameter for tests of the users' own tables."""

COMPLAINTS = ("Traceback", "Exception ignored", "was destroyed", "never awaited", "never retrieved")
"""Log texts that no worker writes, however it ends."""

LONG_LEASE_SECONDS = 3_600.0
"""Longer than any test: a run taken over earlier was released, or its worker's death was noticed."""

_TAIL_CHARACTERS = 4_000

T = TypeVar("T")


class Hand:
    """One worker process, or another process with a URL and options."""

    def __init__(
        self,
        number: int,
        url: str,
        folder: Path,
        options: Mapping[str, object],
        *,
        program: str = "tests.process.app",
        role: str = "worker",
    ) -> None:
        self.number = number
        self.worker_id = ""
        self.killed_at: float | None = None
        self.left_at: float | None = None
        self._log = folder / f"{role}-{number}.log"
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, url, *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        """Its whole output."""
        return self._log.read_text(errors="replace")

    @property
    def is_leaving(self) -> bool:
        return self.left_at is not None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def leave(self) -> None:
        """Send SIGTERM. The end may take a while."""
        self.left_at = time.time()
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        self.killed_at = time.time()
        self.process.kill()
        self.process.wait(GUARD_SECONDS)


class Crew:
    """All workers of a test. It ends them when the test ends.

    `lease` is the lease time of its workers by default: so long that none is lost on a busy machine.
    """

    def __init__(self, folder: Path, database: Path | None = None, *, url: str = "", lease: float = 60.0) -> None:
        self.folder = folder
        self.database = database or folder / "runs.db"
        self.url = url or f"sqlite:///{self.database}"
        self.lease = lease
        self.hears_of_deaths = not url
        self.mortal_lease = LONG_LEASE_SECONDS if self.hears_of_deaths else 3.0
        """Lease for a worker that is to be killed: where its death is not noticed, its lease has to run out."""
        self.ledger = Ledger(folder / "ledger")
        self.hf = Holdfast(self.url)
        self.hf.include(workflows)
        self.hands: list[Hand] = []

    @property
    def book(self) -> str:
        """The path of the ledger, for the payload of a run."""
        return str(self.ledger.path)

    def gate(self, name: str = "gate", hand: Hand | None = None) -> Path:
        """Return a gate file that a body waits for, optionally for the bodies of one worker only."""
        return self.folder / (name if hand is None else f"{name}.{hand.pid}")

    # Workers

    async def hire(self, **options: float) -> Hand:
        """Start a worker process, and wait until it works."""
        return await self.ready(self.launch(None, **options))

    def launch(self, url: str | None = None, **options: float) -> Hand:
        """Start a worker process, optionally with another URL of the store."""
        hand = Hand(len(self.hands), url or self.url, self.folder, {"lease": self.lease, **options})
        self.hands.append(hand)
        return hand

    async def ready(self, hand: Hand) -> Hand:
        """Wait until the store knows a worker."""
        await session_of(self.hf).open()
        await self.until(f"worker {hand.number} is ready", lambda: self._is_ready(hand))
        return hand

    async def _is_ready(self, hand: Hand) -> bool:
        assert hand.is_alive, self.report(f"worker {hand.number} ended at once")
        known = {worker.pid: worker.id for worker in await session_of(self.hf).store.workers()}
        hand.worker_id = known.get(hand.pid, "")
        return bool(hand.worker_id)

    async def exited(self, hand: Hand) -> int:
        """Wait until a process has ended by itself; return its exit code."""
        await self.until(f"worker {hand.number} ends", lambda: not hand.is_alive)
        return hand.process.wait()

    def dismiss(self) -> None:
        """Kill all remaining processes."""
        for hand in self.hands:
            if hand.is_alive:
                hand.kill()

    def complaints(self) -> list[str]:
        """Return log lines of workers that should not be there."""
        lines = [line for hand in self.hands for line in hand.log.splitlines()]
        return [line for line in lines if any(words in line for words in COMPLAINTS)]

    @contextmanager
    def nobody_writing(self) -> Iterator[None]:
        """Hold the write lock, as a process does that is stopped in the middle of a write."""
        file = os.open(f"{self.database}-holdfast/write.lock", os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(file)

    # Waiting

    async def until(self, what: str, is_so: Callable[[], bool | Awaitable[bool]]) -> None:
        """Wait until a condition holds, or fail with all available information."""
        await until(what, is_so, report=self.report)

    async def begun(self, run: RunHandle[Any], location: str, hand: Hand) -> Deed:
        """Wait until a worker has started to execute a step."""
        await self.until(f"worker {hand.number} began {location}", lambda: bool(self._began(run, location, hand)))
        return self._began(run, location, hand)[0]

    def _began(self, run: RunHandle[Any], location: str, hand: Hand) -> list[Deed]:
        return [deed for deed in self.ledger.deeds("began", run.id, location) if deed.pid == hand.pid]

    async def said(self, hand: Hand, words: str) -> None:
        """Wait until a worker has logged certain words."""
        await self.until(f"worker {hand.number} says: {words}", lambda: words in hand.log)

    async def result(self, run: RunHandle[T]) -> T:
        """Return the result of a run, or fail with all available information."""
        try:
            return await run.result(timeout=GUARD_SECONDS)
        except TimeoutError:
            raise AssertionError(self.report(f"after {GUARD_SECONDS:g} s no result: {await run.explain()}")) from None

    async def results(self, runs: Iterable[RunHandle[T]]) -> list[T]:
        """Return the results of many runs."""
        return await asyncio.gather(*map(self.result, runs))

    # Reporting

    def executions(self, run: RunHandle[Any], location: str) -> list[int]:
        """Return the workers that started to execute a step, in order."""
        numbers = {hand.pid: hand.number for hand in self.hands}
        return [numbers[deed.pid] for deed in self.ledger.deeds("began", run.id, location)]

    def report(self, what: str) -> str:
        """A failure, with the last output of every worker."""
        logs = [
            f"--- worker {hand.number} (pid {hand.pid}, {_fate(hand)}) ---\n{_tail(hand.log)}" for hand in self.hands
        ]
        ledger = self.ledger.path.read_text() if self.ledger.path.exists() else ""
        return "\n".join([what, *logs, "--- ledger ---", _tail(ledger)])


def warnings_of(hand: Hand) -> list[str]:
    """Return the warnings of a worker, except those about slow code on a busy machine."""
    return [line for line in hand.log.splitlines() if "WARNING" in line and SLOWNESS not in line]


def is_stopped(hand: Hand) -> bool:
    """True if every thread of a process is stopped."""
    stats = [path.read_text() for path in Path(f"/proc/{hand.pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def _fate(hand: Hand) -> str:
    code = hand.process.poll()
    return "alive" if code is None else f"exit code {code}"


def _tail(text: str) -> str:
    return text[-_TAIL_CHARACTERS:]


# Helpers for runs


async def facts(run: RunHandle[Any], event: str) -> list[AuditInfo]:
    """Return the facts of one kind in a run's audit."""
    return [fact for fact in await run.audit() if fact.event == event]


async def step(run: RunHandle[Any], location: str) -> EntryInfo:
    """Return the entry of a step."""
    (entry,) = [entry for entry in await run.history() if entry.location == location]
    return entry


async def marks(run: RunHandle[Any]) -> dict[str, str]:
    """Return the recorded results of a run's steps by location."""
    return {entry.location: entry.result for entry in await run.history() if entry.kind is EntryKind.STEP}
