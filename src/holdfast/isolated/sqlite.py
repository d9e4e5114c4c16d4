"""A namespace in one SQLite file: one file per run, which can be copied, moved and deleted alone.

It has no side files between two calls, so that a host may keep thousands of them. Only this module imports `apsw`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw

from holdfast.core.clock import instant, moment
from holdfast.isolated.driver import NamespaceDriver, Writes, check_writes

_BUSY_MILLISECONDS = 5_000


class SqliteNamespace(NamespaceDriver):
    """A driver that keeps a run in a SQLite file. It opens the file at the first call; `close` closes it."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._connection: apsw.Connection | None = None

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        row = self._run("select value from pair where key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    async def list(self, prefix: bytes) -> Sequence[bytes]:
        """Return the keys that begin with a prefix, in byte order."""
        # SQLite compares blobs byte by byte, in the order of the primary key.
        if (end := _after(prefix)) is None:
            found = self._run("select key from pair where key >= ? order by key", (prefix,))
        else:
            found = self._run("select key from pair where key >= ? and key < ? order by key", (prefix, end))
        return [key for (key,) in found]

    async def batch(self, writes: Writes) -> None:
        """Set and delete keys, all or none."""
        check_writes(writes)
        # In a thread, because a commit waits for the disk and other runs share this loop.
        await asyncio.to_thread(self._write, writes)

    async def set_alarm(self, at: datetime) -> None:
        """Set the alarm, in place of the earlier one."""
        await asyncio.to_thread(self._run, "insert or replace into alarm (one, at) values (1, ?)", (instant(at),))

    async def clear_alarm(self) -> None:
        """Remove the alarm, if there is one."""
        await asyncio.to_thread(self._run, "delete from alarm", ())

    @property
    def alarm_at(self) -> datetime | None:
        """The alarm, for a host that reads its files."""
        row = self._run("select at from alarm", ()).fetchone()
        return None if row is None else moment(row[0])

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write(self, writes: Writes) -> None:
        with self._opened() as connection:  # one transaction
            for key, value in writes:
                if value is None:
                    connection.execute("delete from pair where key = ?", (key,))
                else:
                    connection.execute("insert or replace into pair (key, value) values (?, ?)", (key, value))

    def _run(self, statement: str, values: tuple[Any, ...]) -> Any:
        return self._opened().execute(statement, values)

    def _opened(self) -> apsw.Connection:
        if self._connection is None:
            connection = apsw.Connection(str(self._path))
            connection.set_busy_timeout(_BUSY_MILLISECONDS)
            # No WAL: it would leave two more files beside each run.
            connection.execute("pragma fullfsync = on")
            connection.execute("pragma journal_mode = truncate")
            connection.execute("pragma synchronous = full")
            connection.execute("create table if not exists pair (key blob primary key, value blob) without rowid")
            connection.execute("create table if not exists alarm (one integer primary key, at integer)")
            self._connection = connection
        return self._connection


def _after(prefix: bytes) -> bytes | None:
    """Return the first key after all keys with a prefix, or None if there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None
