"""The machine's own limit: how long one durable commit takes, with nothing around it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import apsw


def bare_commit_seconds(directory: Path, count: int = 300) -> float:
    """The median time of one single-row transaction, as durable as the store's own."""
    connection = apsw.Connection(str(directory / "bare.db"))
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table if not exists entry (id integer primary key, value text)")
    took = []
    for number in range(count):
        started = time.perf_counter()
        connection.execute("begin immediate")
        connection.execute("insert into entry (value) values (?)", (f"value {number}" * 10,))
        connection.execute("commit")
        took.append(time.perf_counter() - started)
    connection.close()
    return statistics.median(took)
