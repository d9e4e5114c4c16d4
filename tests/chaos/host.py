"""The host: the current speed of the machine, printed beside each figure that was measured on it."""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

_ROUNDS = 500_000
_LOOPS = 5
_COMMITS = 20


class Host(msgspec.Struct, frozen=True):
    """Milliseconds for a fixed loop of Python and for a commit of SQLite with its fsync, and the load average."""

    loop_ms: float
    commit_ms: float
    load: float

    def __str__(self) -> str:
        return f"loop {self.loop_ms:.0f} ms, commit {self.commit_ms:.1f} ms, load {self.load:.1f}"


def measured() -> Host:
    """Measure the current speed of the machine; the commits go to the temporary folder of tests."""
    loop = statistics.median(_milliseconds(_loop) for _ in range(_LOOPS))
    with tempfile.TemporaryDirectory(prefix="holdfast-host-") as folder:
        connection = sqlite3.connect(Path(folder) / "commit.db", isolation_level=None)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("create table line (number integer)")
        commit = statistics.median(_milliseconds(lambda: _commit(connection)) for _ in range(_COMMITS))
        connection.close()
    return Host(round(loop, 1), round(commit, 2), round(os.getloadavg()[0], 2))


def _loop() -> None:
    total = 0
    for number in range(_ROUNDS):
        total += number & 7


def _commit(connection: sqlite3.Connection) -> None:
    connection.execute("insert into line values (1)")


def _milliseconds(act: Callable[[], None]) -> float:
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1_000
