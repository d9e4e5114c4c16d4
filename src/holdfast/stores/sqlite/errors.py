"""Errors of SQLite, translated into ours: what happened, and what to do."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.core.errors import InvalidRequest, StoreUnavailable, Unreadable
from holdfast.stores.operations.unit_of_work import OddRow

BUSY_TIMEOUT_SECONDS = 5.0

_ADVICE: dict[type[apsw.Error], str] = {
    apsw.FullError: "the disk is full; nothing was written; free some space, then it works again",
    apsw.ReadOnlyError: "cannot be written; give this user write permission to the file and to its directory",
    apsw.PermissionsError: "cannot be accessed; give this user permission to the file and to its directory",
    apsw.CantOpenError: "cannot be opened; does its directory exist, and may this user write there?",
    apsw.NotADBError: "is not a SQLite database, or is damaged; choose another file, or restore a backup",
    apsw.CorruptError: "is damaged; restore a backup",
    apsw.IOError: "cannot be read or written; the disk reports an error",
    apsw.BusyError: (
        f"is locked by another program for more than {BUSY_TIMEOUT_SECONDS:g} s; "
        "is a backup or a shell holding a transaction open?"
    ),
    apsw.LockedError: "is locked by another connection; is a shell holding a transaction open?",
    apsw.NoMemError: "cannot be read: there is no memory left",
}

_REOPENING = (apsw.IOError, apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError, apsw.ReadOnlyError)
_OF_FILE = (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError, apsw.NoMemError)


class TransactionEnded(Exception):
    """A user's function has ended the transaction it was part of, and everything in it is undone."""


def unavailable(path: Path, error: Exception) -> Exception:
    """The error for the caller, to be raised `from` the driver's. What is not the driver's comes back as it is."""
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
    """Whether an error would meet each operation of a batch alike, and only after a long wait."""
    return isinstance(error, apsw.BusyError | apsw.LockedError | OSError)


def needs_reopening(error: Exception) -> bool:
    """Whether a connection that met this error had better be closed."""
    return isinstance(error, (*_REOPENING, TransactionEnded))


def is_of_file(error: BaseException) -> bool:
    """Whether an error says that the file can be neither read nor written, whoever tries."""
    return isinstance(error, _OF_FILE)
