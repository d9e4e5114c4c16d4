"""Translate SQLite's errors into holdfast's, with what happened and what to do."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.core.errors import InvalidRequest, StoreUnavailable, Unreadable
from holdfast.stores.operations.unit_of_work import OddRow

BUSY_TIMEOUT_SECONDS = 5.0

_ADVICE: dict[type[apsw.Error], str] = {
    apsw.FullError: "cannot be written: the disk is full; nothing was written; free some space and try again",
    apsw.ReadOnlyError: "cannot be written; give this user write permission to the file and to its directory",
    apsw.PermissionsError: "cannot be accessed; give this user permission to the file and to its directory",
    apsw.CantOpenError: "cannot be opened; check that its directory exists and that this user can write there",
    apsw.NotADBError: "is not a SQLite database, or is damaged; choose another file, or restore a backup",
    apsw.CorruptError: "is damaged; restore a backup",
    apsw.IOError: "cannot be read or written; the disk reports an error",
    apsw.BusyError: (
        f"has been locked by another program for more than {BUSY_TIMEOUT_SECONDS:g} s; "
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
        case apsw.Error():
            advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "cannot be used")
            return StoreUnavailable(f"the database {path} {advice} ({error})")
        case OSError():
            return StoreUnavailable(f"the database {path} cannot be used: {error}")
        case _:
            return error


def concerns_everybody(error: Exception) -> bool:
    """Return True if an error would hit every operation of a batch alike, each after a long wait."""
    return isinstance(error, apsw.BusyError | apsw.LockedError | OSError)


def needs_reopening(error: Exception) -> bool:
    """Return True if a connection should be reopened after this error."""
    return isinstance(error, (*_REOPENING, TransactionEnded))


def is_of_file(error: BaseException) -> bool:
    """Return True if an error concerns the file itself, so that no operation can read or write it."""
    return isinstance(error, _OF_FILE)
