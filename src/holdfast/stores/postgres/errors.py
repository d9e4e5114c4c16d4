"""Translation of driver and server errors into holdfast's, which say what happened and what to do."""

from __future__ import annotations

import re

import psycopg

from holdfast.core.errors import HoldfastError, InvalidRequest, SchemaOutOfDate, StoreUnavailable
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import SessionLimits, Unanswered

_CONFLICTS = frozenset({"40001", "40P01"})
_OVERDUE = frozenset({"25P03", "25P04"})
_HELD_UP = frozenset({"55P03", "57014"})
_TIMEOUTS = _OVERDUE | _HELD_UP
_LOST = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "53300", "25006"})
_SCHEMA = frozenset({"3F000", "42P01", "42703", "42883"})

_ADVICE = {
    "25006": (
        "cannot be written: it is a standby, or was set read-only; name the primary, or list all hosts so that the "
        "driver finds it"
    ),
    "25P03": "ended the transaction, because idle_in_transaction_session_timeout was reached; nothing was written",
    "25P04": "ended the transaction, because transaction_timeout was reached; nothing was written",
    "26000": "does not know a prepared statement of holdfast; behind a pooler add ?prepare=off&hints=off to the URL",
    "28000": "rejects this user; check the user's name, and pg_hba.conf on the server",
    "28P01": "refuses the password; check user and password in the URL, or set PGPASSWORD",
    "3D000": "has no such database; create it (`createdb`), or correct the URL",
    "40001": "rolled back each attempt because of other transactions; nothing was written; try again",
    "40P01": "rolled back each attempt because of other transactions; nothing was written; try again",
    "42P05": (
        "has a prepared statement of another client under the same name; behind a pooler add ?prepare=off&hints=off to "
        "the URL"
    ),
    "53100": "has no disk space left; nothing was written; free some space, then it works again",
    "53200": "is out of memory; nothing was written; if the message mentions locks, raise max_locks_per_transaction",
    "53300": (
        "has no connection left; raise max_connections, use fewer processes, or connect through a pooler "
        "(with ?prepare=off&hints=off)"
    ),
    "55P03": "did not get a lock in time (lock_timeout); check whether another session keeps a transaction open",
    "57014": "took too long for a statement (statement_timeout), or a user cancelled it; nothing was written",
    "57P01": "is shutting down, or its administrator ended the connection",
    "57P02": "is recovering from a crash of one of its processes",
    "57P03": "is starting or stopping; it can be used again in a moment",
    "57P04": "has dropped the database",
}

# The driver passes on no error code when a server refuses a connection, so the message has to be matched.
_REFUSALS = (
    (re.compile(r"password authentication failed|no password supplied"), "28P01"),
    (re.compile(r'database "[^"]*" does not exist'), "3D000"),
    (re.compile(r'role "[^"]*" does not exist|pg_hba\.conf|authentication failed|is not permitted to log in'), "28000"),
    (re.compile(r"too many clients|connection slots|too many connections|no more connections"), "53300"),
    (re.compile(r"the database system is|not yet accepting connections"), "57P03"),
    (re.compile(r"session is read-only|server is in hot standby mode"), "25006"),
)
_UNREACHED = (
    (
        re.compile(r"unsupported startup parameter"),
        "this seems to be a pooler; add ?prepare=off&hints=off to the URL, then holdfast works behind it",
    ),
    (re.compile(r"Connection refused"), "no server listens there; is it running, and are host and port right?"),
    (re.compile(r"resolve host|translate host name"), "the host name is unknown; is it spelled right?"),
    (re.compile(r"No such file or directory"), "the socket does not exist; is the server running there?"),
    (re.compile(r"timeout expired|timed out"), "no answer; is the host right, and does a firewall block the port?"),
)

_DENIED = re.compile(r"permission denied for (\w+)")
_GRANTS = {
    "database": "grant create on database {database} to {user}",
    "schema": "grant usage on schema {schema} to {user}",
    "table": "grant select, insert, update, delete on all tables in schema {schema} to {user}",
    "view": "grant select, insert, update, delete on all tables in schema {schema} to {user}",
    "sequence": "grant usage, select on all sequences in schema {schema} to {user}",
    "function": "grant execute on all functions in schema {schema} to {user}",
    "procedure": "grant execute on all procedures in schema {schema} to {user}",
}


def is_conflict(error: BaseException) -> bool:
    """True if the server rolled back a transaction because of another one, so that it may be repeated at once."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _CONFLICTS


def is_timeout(error: BaseException) -> bool:
    """True if the server rolled back work that took too long or was cancelled. Slow work would fail again."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _TIMEOUTS


def is_overdue(error: BaseException | None) -> bool:
    """True if the server ended a connection because its transaction was left open for too long."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _OVERDUE


def is_cancelled(error: BaseException, seconds: float, limits: SessionLimits) -> bool:
    """True if an apparent timeout came before any limit of the session: a user cancelled it, so it may be repeated."""
    return is_timeout(error) and not is_overdue(error) and seconds < limits.shortest_seconds / 2


def is_lost(error: BaseException) -> bool:
    """True if the connection was lost or a timeout expired, so that a repetition needs a new connection.

    The operation may have been applied. Only after a timeout is it certain that nothing was written.
    """
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return error.sqlstate in _LOST or error.sqlstate.startswith("08") or is_timeout(error)


def unavailable(address: PostgresAddress, error: BaseException) -> BaseException:
    """Return the error for the caller, to be raised `from` the driver's. Other errors are returned unchanged."""
    match error:
        case HoldfastError():
            return error
        case UnicodeEncodeError():
            return InvalidRequest(f"a value cannot be stored in Postgres: {error}")
        case psycopg.Error():
            return _translated(address, error, _told(address, error))
        case _:
            return error


def _translated(address: PostgresAddress, error: psycopg.Error, text: str) -> HoldfastError:
    code = error.sqlstate or next((code for words, code in _REFUSALS if words.search(text)), "")
    if code[:2] in ("22", "23", "54") or (not code and isinstance(error, psycopg.DataError)):
        return InvalidRequest(f"a value cannot be stored in Postgres: {text}")
    if code in _SCHEMA:
        return SchemaOutOfDate(
            f"the schema {address.schema!r} of {address.shown} lacks objects that this version of holdfast needs "
            f"({text}); `holdfast migrate --check` says if the schema is empty, or if an older or a newer version of "
            "holdfast made it, and what to do"
        )
    if code == "42501":
        return StoreUnavailable(f"{address.shown} lacks a permission ({text}); {_grant(address, text)}")
    if isinstance(error, Unanswered):
        return StoreUnavailable(
            f"{address.shown} does not answer ({text}); the operation may or may not have been applied, and may be "
            "repeated"
        )
    if code:
        coded = StoreUnavailable(f"{address.shown} {_ADVICE.get(code, f'reports error {code}')} ({text})")
        coded.is_held_up = code in _HELD_UP
        return coded
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        advice = next((advice for words, advice in _UNREACHED if words.search(text)), "is the server running?")
        return StoreUnavailable(f"{address.shown} cannot be reached: {advice} ({text})")
    return StoreUnavailable(f"{address.shown} cannot be used ({text})")


def _told(address: PostgresAddress, error: psycopg.Error) -> str:
    """Return the message of the server or driver on one line, without a password."""
    text = error.diag.message_primary or str(error)
    return address.scrubbed(" ".join(text.split()))


def _grant(address: PostgresAddress, text: str) -> str:
    """Return the advice that removes a missing permission: the statement to run, where it is known."""
    found = _DENIED.search(text)
    statement = _GRANTS.get(found.group(1)) if found else None
    if statement is None:  # `must be owner of …`, for one
        return f"have the owner of the schema {address.schema!r} do this, or grant this user the owner's role"
    names = {"database": address.database or "…", "schema": address.schema, "user": address.user or "…"}
    return f"have its owner run: {statement.format(**names)}"
