"""Connections: open the database file, and translate SQLite's errors. Only this module sets the pragmas."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.core.errors import InvalidRequest, StoreUnavailable, Unreadable
from holdfast.stores.operations.unit_of_work import OddRow
from holdfast.stores.sqlite.files import utf8_name

_STATEMENTS_CACHED = 256
_WRITER_CACHE_KIBIBYTES = 64 * 1024
_READER_CACHE_KIBIBYTES = 16 * 1024
_WAL_KEPT_BYTES = 64 * 1024 * 1024
_BUSY_TIMEOUT_SECONDS = 5.0


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


def _open(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(utf8_name(path), flags=flags, statementcachesize=_STATEMENTS_CACHED)
    connection.set_busy_timeout(int(_BUSY_TIMEOUT_SECONDS * 1000))  # for other programs that write
    # Plans must not depend on bound values. With partial indexes, SQLite would otherwise prepare many statements again
    # on each bind, which takes longer than running them.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


# Errors

_ADVICE: dict[type[apsw.Error], str] = {
    apsw.FullError: "cannot be written: the disk is full; nothing was written; free some space and try again",
    apsw.ReadOnlyError: "cannot be written; give this user write permission to the file and to its directory",
    apsw.PermissionsError: "cannot be accessed; give this user permission to the file and to its directory",
    apsw.CantOpenError: "cannot be opened; check that its directory exists and that this user can write there",
    apsw.NotADBError: "is not a SQLite database, or is damaged; choose another file, or restore a backup",
    apsw.CorruptError: "is damaged; restore a backup",
    apsw.IOError: "cannot be read or written; the disk reports an error",
    apsw.BusyError: (
        f"has been locked by another program for more than {_BUSY_TIMEOUT_SECONDS:g} s; "
        "check whether a backup or a shell holds a transaction open"
    ),
    apsw.LockedError: "is locked by another connection; check whether a shell holds a transaction open",
    apsw.NoMemError: "cannot be read: out of memory",
}

_REOPENING = (apsw.IOError, apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError, apsw.ReadOnlyError)
_OF_FILE = (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError, apsw.NoMemError)


class TransactionEnded(Exception):
    """A user's function ended the transaction that it ran in, so everything in that transaction is undone."""


def unavailable(path: Path, error: Exception) -> Exception:
    """Return the error for the caller, to be raised `from` the driver's error. Returns any other error unchanged."""
    match error:
        case apsw.TooBigError() | UnicodeEncodeError() | OverflowError():
            return InvalidRequest(f"a value cannot be stored in SQLite: {error}")
        case OddRow() | UnicodeDecodeError():
            return Unreadable(f"the database {path} has a row that cannot be read: {error}")
        case apsw.Error() if path.is_dir():  # SQLite reports an error of the disk
            return StoreUnavailable(f"cannot open {path}: it is a directory; name a file")
        case apsw.Error():
            advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "cannot be used")
            return StoreUnavailable(f"the database {path} {advice} ({error})")
        case OSError():
            return StoreUnavailable(f"the database {path} cannot be used: {error}")
        case _:
            return error


def concerns_all_operations(error: Exception) -> bool:
    """Return True if an error would hit every operation of a batch alike, each after a long wait."""
    return isinstance(error, apsw.BusyError | apsw.LockedError | OSError)


def needs_reopening(error: Exception) -> bool:
    """Return True if a connection should be reopened after this error."""
    return isinstance(error, (*_REOPENING, TransactionEnded))


def is_of_file(error: BaseException) -> bool:
    """Return True if an error concerns the file itself, so that no operation can read or write it."""
    return isinstance(error, _OF_FILE)
