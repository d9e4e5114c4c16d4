"""An SQLite file. Processes are frozen while they hold the write lock, and other programs access the file."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from holdfast.testing.patience import GUARD_SECONDS
from tests.chaos.places import Blow, Place
from tests.process.crew import Hand, is_stopped

_TRIES = 200
_MOST_SECONDS = 2.0
"""Less than a lease, because leases cannot be renewed meanwhile."""

_OUTSIDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=5)
connection.execute("pragma wal_checkpoint(truncate)")
assert connection.execute("pragma quick_check").fetchall() == [("ok",)]
"""


class SqlitePlace(Place):
    """A file that all processes share."""

    is_deaf = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._file = folder / "runs.db"
        self.url = self.way = f"sqlite:///{self._file}"

    def blows(self) -> Mapping[str, Blow]:
        return {
            "kill writer": Blow(3, self._kill_writer),
            "stop writer": Blow(1, self._stop_writer),
            "checkpoint": Blow(1, self._checkpoint),
        }

    async def _kill_writer(self, chance: Random, hands: Sequence[Hand]) -> None:
        async with self._caught(chance, hands) as hand:
            if hand is not None:
                await asyncio.to_thread(hand.kill)

    async def _stop_writer(self, chance: Random, hands: Sequence[Hand]) -> None:
        async with self._caught(chance, hands) as hand:
            if hand is not None:
                with self.outage():
                    await asyncio.sleep(chance.uniform(0.1, _MOST_SECONDS))

    @asynccontextmanager
    async def _caught(self, chance: Random, hands: Sequence[Hand]) -> AsyncIterator[Hand | None]:
        """Freeze a process in the middle of a write; return None if all were idle."""
        for _ in range(_TRIES):
            hand = chance.choice(hands)
            hand.signal(signal.SIGSTOP)
            try:
                while hand.is_alive and not is_stopped(hand):
                    await asyncio.sleep(0)
                if self.waits_for(hand):
                    yield hand
                    return
            finally:
                hand.signal(signal.SIGCONT)
            await asyncio.sleep(0.005)
        yield None

    def waits_for(self, hand: Hand) -> bool:
        """True if the process holds the write lock."""
        inode = Path(f"{self._file}-holdfast/write.lock").stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[3] == "WRITE" and words[5].endswith(f":{inode}"):
                return int(words[4]) == hand.pid
        return False

    async def _checkpoint(self, chance: Random, hands: Sequence[Hand]) -> None:
        """Checkpoint the log from another program, as a backup tool or a person with the SQLite shell does."""
        command = [sys.executable, "-c", _OUTSIDER, str(self._file)]
        done = await asyncio.to_thread(subprocess.run, command, timeout=GUARD_SECONDS, capture_output=True, text=True)
        assert done.returncode == 0 or "locked" in done.stderr, done.stderr


PLACE = SqlitePlace
