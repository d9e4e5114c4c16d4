"""Connections: how this store opens its file. Nothing else in the package names a pragma of a connection."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.stores.sqlite.trouble import BUSY_TIMEOUT_SECONDS

_STATEMENTS_CACHED = 256


def open_for_writing(path: Path, *, may_create: bool = True) -> apsw.Connection:
    """A connection that commits durably. SQLite itself never copies its WAL back; the writer does, between batches."""
    create = apsw.SQLITE_OPEN_CREATE if may_create else 0
    connection = _open(path, apsw.SQLITE_OPEN_READWRITE | create)
    try:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma wal_autocheckpoint = 0")
        # Opening succeeds on what cannot be written; only a transaction tells.
        connection.execute("begin immediate")
        connection.execute("rollback")
    except apsw.Error:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> apsw.Connection:
    return _open(path, apsw.SQLITE_OPEN_READONLY)


def _open(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=flags, statementcachesize=_STATEMENTS_CACHED)
    connection.set_busy_timeout(int(BUSY_TIMEOUT_SECONDS * 1000))
    return connection
