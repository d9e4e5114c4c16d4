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
on_every_store = pytest.mark.parametrize("crew", ["sqlite", "postgres"], indirect=True)
"""For tests of what workers do on an SQLite file and on a Postgres server alike."""

COMPLAINTS = ("Traceback", "Exception ignored", "was destroyed", "never awaited", "never retrieved")
"""What no worker ever says, however it ends."""

LONG_LEASE_SECONDS = 3_600.0
"""Longer than any test: what is taken over in spite of it was heard to have ended, or was given back."""

_TAIL_CHARACTERS = 4_000

T = TypeVar("T")


class Hand:
    """One worker process, or another that is given a URL and options."""

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
        """Everything it has said."""
        return self._log.read_text(errors="replace")

    @property
    def is_leaving(self) -> bool:
        return self.left_at is not None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def leave(self) -> None:
        """SIGTERM. It may take a while."""
        self.left_at = time.time()
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL. Returns when the process is gone."""
        self.killed_at = time.time()
        self.process.kill()
        self.process.wait(GUARD_SECONDS)


class Crew:
    """All workers of a test. It dismisses them at the end, whatever has become of them.

    `lease` is how long the leases of its workers last unless they are told otherwise: so long that none is lost where
    the machine is busy with other things.
    """

    def __init__(self, folder: Path, database: Path | None = None, *, url: str = "", lease: float = 60.0) -> None:
        self.folder = folder
        self.database = database or folder / "runs.db"
        self.url = url or f"sqlite:///{self.database}"
        self.lease = lease
        self.hears_of_deaths = not url
        self.mortal_lease = LONG_LEASE_SECONDS if self.hears_of_deaths else 3.0
        """For a worker that is to be killed: where nobody hears of its death, its lease has to run out."""
        self.ledger = Ledger(folder / "ledger")
        self.hf = Holdfast(self.url)
        self.hf.include(workflows)
        self.hands: list[Hand] = []

    @property
    def book(self) -> str:
        """Where the ledger is, for the payload of a run."""
        return str(self.ledger.path)

    def gate(self, name: str = "gate", hand: Hand | None = None) -> Path:
        """A file that some body waits for; it may be one for the bodies of one worker only."""
        return self.folder / (name if hand is None else f"{name}.{hand.pid}")

    # Workers

    async def hire(self, **options: float) -> Hand:
        """Start a worker process, and wait until it works."""
        return await self.ready(self.launch(None, **options))

    def launch(self, url: str | None = None, **options: float) -> Hand:
        """Start a worker process, perhaps with another way to the store."""
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
        """Wait until a process has ended by itself; its exit code."""
        await self.until(f"worker {hand.number} ends", lambda: not hand.is_alive)
        return hand.process.wait()

    def dismiss(self) -> None:
        """Kill whoever is left."""
        for hand in self.hands:
            if hand.is_alive:
                hand.kill()

    def complaints(self) -> list[str]:
        """Lines of workers that should not be there."""
        lines = [line for hand in self.hands for line in hand.log.splitlines()]
        return [line for line in lines if any(words in line for words in COMPLAINTS)]

    @contextmanager
    def nobody_writing(self) -> Iterator[None]:
        """Have the lock that all must have to write, as a process does that is stopped in the midst of it."""
        file = os.open(f"{self.database}-holdfast/write.lock", os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(file)

    # Waiting

    async def until(self, what: str, is_so: Callable[[], bool | Awaitable[bool]]) -> None:
        """Wait until something is so, or the guard ends it with all that is known."""
        await until(what, is_so, report=self.report)

    async def begun(self, run: RunHandle[Any], location: str, hand: Hand) -> Deed:
        """Wait until a worker has begun to execute a step."""
        await self.until(f"worker {hand.number} began {location}", lambda: bool(self._began(run, location, hand)))
        return self._began(run, location, hand)[0]

    def _began(self, run: RunHandle[Any], location: str, hand: Hand) -> list[Deed]:
        return [deed for deed in self.ledger.deeds("began", run.id, location) if deed.pid == hand.pid]

    async def said(self, hand: Hand, words: str) -> None:
        """Wait until a worker has logged certain words."""
        await self.until(f"worker {hand.number} says: {words}", lambda: words in hand.log)

    async def result(self, run: RunHandle[T]) -> T:
        """The result of a run, or all that is known of why there is none."""
        try:
            return await run.result(timeout=GUARD_SECONDS)
        except TimeoutError:
            raise AssertionError(self.report(f"after {GUARD_SECONDS:g} s no result: {await run.explain()}")) from None

    async def results(self, runs: Iterable[RunHandle[T]]) -> list[T]:
        """The results of many runs."""
        return await asyncio.gather(*map(self.result, runs))

    # Telling

    def executions(self, run: RunHandle[Any], location: str) -> list[int]:
        """The workers that began to execute a step, in order."""
        numbers = {hand.pid: hand.number for hand in self.hands}
        return [numbers[deed.pid] for deed in self.ledger.deeds("began", run.id, location)]

    def report(self, what: str) -> str:
        """A failure, with the last words of every worker."""
        logs = [
            f"--- worker {hand.number} (pid {hand.pid}, {_fate(hand)}) ---\n{_tail(hand.log)}" for hand in self.hands
        ]
        ledger = self.ledger.path.read_text() if self.ledger.path.exists() else ""
        return "\n".join([what, *logs, "--- ledger ---", _tail(ledger)])


def warnings_of(hand: Hand) -> list[str]:
    """The warnings that a worker has logged; not those of code that took long, as it does on a busy machine."""
    return [line for line in hand.log.splitlines() if "WARNING" in line and SLOWNESS not in line]


def is_stopped(hand: Hand) -> bool:
    """Whether every thread of a process stands still."""
    stats = [path.read_text() for path in Path(f"/proc/{hand.pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def _fate(hand: Hand) -> str:
    code = hand.process.poll()
    return "alive" if code is None else f"exit code {code}"


def _tail(text: str) -> str:
    return text[-_TAIL_CHARACTERS:]


# Of runs


async def facts(run: RunHandle[Any], event: str) -> list[AuditInfo]:
    """The facts of one kind in a run's life."""
    return [fact for fact in await run.audit() if fact.event == event]


async def step(run: RunHandle[Any], location: str) -> EntryInfo:
    """What is recorded of a step."""
    (entry,) = [entry for entry in await run.history() if entry.location == location]
    return entry


async def marks(run: RunHandle[Any]) -> dict[str, str]:
    """The recorded results of a run's steps by location."""
    return {entry.location: entry.result for entry in await run.history() if entry.kind is EntryKind.STEP}
