"""Connections: how this store opens its file. Nothing else in the package names a pragma of a connection."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.stores.sqlite.errors import BUSY_TIMEOUT_SECONDS
from holdfast.stores.sqlite.files import utf8_name

_STATEMENTS_CACHED = 256
_WRITER_CACHE_KIBIBYTES = 64 * 1024
_READER_CACHE_KIBIBYTES = 16 * 1024
_WAL_KEPT_BYTES = 64 * 1024 * 1024


def open_for_writing(path: Path, *, may_create: bool = True) -> apsw.Connection:
    """A connection that commits durably. SQLite itself never copies its WAL back; the writer does, between batches."""
    create = apsw.SQLITE_OPEN_CREATE if may_create else 0
    connection = _open(path, apsw.SQLITE_OPEN_READWRITE | create)
    try:
        # First, for all that follows. Only macOS needs it: an ordinary flush ends there in the cache of the drive.
        connection.execute("pragma fullfsync = on")
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma foreign_keys = on")  # of users' tables; ours have none
        connection.execute("pragma wal_autocheckpoint = 0")
        connection.execute(f"pragma journal_size_limit = {_WAL_KEPT_BYTES}")
        # SQLite's own 2 MB hold a few thousand runs; beyond that each of them cost several reads of the file.
        connection.execute(f"pragma cache_size = -{_WRITER_CACHE_KIBIBYTES}")
        # Opening succeeds on what cannot be written: SQLite then reads only, and lets even this transaction begin.
        connection.execute("begin immediate")
        connection.execute("rollback")
        if connection.readonly("main"):
            raise apsw.ReadOnlyError("attempt to write a readonly database")
    except apsw.Error:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> apsw.Connection:
    connection = _open(path, apsw.SQLITE_OPEN_READONLY)
    connection.execute(f"pragma cache_size = -{_READER_CACHE_KIBIBYTES}")
    return connection


def be_patient(connection: apsw.Connection) -> None:
    """Wait a while for a stranger who writes, before giving up."""
    connection.set_busy_timeout(int(BUSY_TIMEOUT_SECONDS * 1000))


def _open(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(utf8_name(path), flags=flags, statementcachesize=_STATEMENTS_CACHED)
    be_patient(connection)
    # Plans must not depend on bound values: beside partial indexes SQLite would prepare many statements anew each
    # time they are bound, which takes longer than they do.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection
