"""Connections: open the database file. Only this module sets the pragmas of a connection."""

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
    """Open a connection that commits durably.

    Automatic WAL checkpoints are off. The writer copies the WAL back between batches.
    """
    create = apsw.SQLITE_OPEN_CREATE if may_create else 0
    connection = _open(path, apsw.SQLITE_OPEN_READWRITE | create)
    try:
        # First, so that it applies to everything below. Only macOS needs it: an ordinary fsync stops there in the
        # cache of the drive.
        connection.execute("pragma fullfsync = on")
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma foreign_keys = on")  # for users' tables; ours have no foreign keys
        connection.execute("pragma wal_autocheckpoint = 0")
        connection.execute(f"pragma journal_size_limit = {_WAL_KEPT_BYTES}")
        # SQLite's default of 2 MB holds a few thousand runs. Beyond that, each run costs several reads of the file.
        connection.execute(f"pragma cache_size = -{_WRITER_CACHE_KIBIBYTES}")
        # Opening succeeds even if the file cannot be written: SQLite falls back to read-only, and even this
        # transaction begins. So ask SQLite afterwards.
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
    """Wait up to `BUSY_TIMEOUT_SECONDS` for another program that writes, before SQLite raises `BusyError`."""
    connection.set_busy_timeout(int(BUSY_TIMEOUT_SECONDS * 1000))


def _open(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(utf8_name(path), flags=flags, statementcachesize=_STATEMENTS_CACHED)
    be_patient(connection)
    # Plans must not depend on bound values. With partial indexes, SQLite would otherwise prepare many statements again
    # on each bind, which takes longer than running them.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection
