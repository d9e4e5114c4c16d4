"""Connections of this store: how they are opened, their time limits, and what their errors mean.

Session settings are set only here. Errors of the driver and the server become holdfast's, which say what happened and
what to do.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict

from holdfast.core.errors import HoldfastError, InvalidRequest, SchemaOutOfDate, StoreUnavailable
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.reachability import Reachability

FIRST_PAUSE_SECONDS = 0.1

APPLICATION_NAME = "holdfast"
OLDEST_VERSION = 13

STATEMENT_SECONDS = 15.0
LOCK_SECONDS = 10.0
IDLE_IN_TRANSACTION_SECONDS = 60.0
OWN_IDLE_SECONDS = 2.0
GRACE_SECONDS = 5.0

KEEPALIVE_IDLE_SECONDS = 5
KEEPALIVE_APART_SECONDS = 2
KEEPALIVE_COUNT = 3
UNACKNOWLEDGED_SECONDS = 10

# The store has few statements and repeats them all the time, so each is prepared on its second use.
_PREPARE_THRESHOLD = 1

_WRITABLE = ("read-write", "primary")

SEEING_LEVELS = ("read committed", "read uncommitted")
"""Isolation levels at which each statement sees everything committed before it. In Postgres they are the same."""

_SEEING = r"-c default_transaction_isolation=read\ committed"

_COMMIT_LEVEL = "synchronous_commit"
_DURABLE = f"-c {_COMMIT_LEVEL}=on"
"""Makes a commit wait for the disk, even if the default of the server, database or role is another."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Time limits of a session. The server enforces them. 0 means no limit.

    `answer_seconds` is the client's own limit, for a server that stops answering altogether.
    """

    statement_seconds: float = STATEMENT_SECONDS
    lock_seconds: float = LOCK_SECONDS
    idle_seconds: float = IDLE_IN_TRANSACTION_SECONDS

    @property
    def answer_seconds(self) -> float:
        return self.statement_seconds + GRACE_SECONDS if self.statement_seconds else 0.0

    @property
    def shortest_seconds(self) -> float:
        """The shortest time after which the server may end a statement."""
        return min(self.statement_seconds or math.inf, self.lock_seconds or math.inf)

    @property
    def options(self) -> str:
        """The limits as libpq `options`."""
        settings = {
            "statement_timeout": round(self.statement_seconds * 1000),
            "lock_timeout": round(self.lock_seconds * 1000),
            "idle_in_transaction_session_timeout": round(self.idle_seconds * 1000),
            "jit": "off",  # compiling would take longer than any of the store's statements
        }
        return " ".join(f"-c {name}={value}" for name, value in settings.items())


USUAL = SessionLimits()
OWN = SessionLimits(idle_seconds=OWN_IDLE_SECONDS)
"""Limits of the store's own transactions. Between two of their statements the store's code takes milliseconds. A
process that takes longer stands still, and its locks (a topic, a type, a run) must not block all other processes."""
UNLIMITED = SessionLimits(statement_seconds=0, lock_seconds=0, idle_seconds=0)


class Unanswered(psycopg.OperationalError):
    """The server did not answer in time, not even with an error. The connection is unusable."""


class Connection(psycopg.Connection[Any]):
    """A connection that waits for answers only `answer_seconds`.

    Any thread may set `is_given_up`. The thread that waits on the connection then gets an `Unanswered` error.
    """

    answer_seconds: float = 0.0
    is_given_up: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pid = os.getpid()

    def wait(self, gen: PQGen[_Answer], *args: Any, **kwargs: Any) -> _Answer:
        return super().wait(_limited(gen, self), *args, **kwargs)

    def __del__(self, *args: Any, getpid: Callable[[], int] = os.getpid) -> None:
        # A forked child inherits the parent's connection and must not warn that it was not closed. The driver itself
        # also checks the process before it sends a goodbye to the server.
        if getattr(self, "_pid", None) == getpid():
            super().__del__(*args)


def connect(address: PostgresAddress, limits: SessionLimits = USUAL) -> Connection:
    """Open a connection in autocommit mode to a server that this store can use. Driver errors are not translated."""
    connection = Connection.connect(
        address.conninfo,
        autocommit=True,
        prepare_threshold=_PREPARE_THRESHOLD if address.is_prepared else None,
        **_parameters(address, limits),
    )
    connection.answer_seconds = limits.answer_seconds
    try:
        _check_server(address, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def disown(connection: Connection) -> None:
    """Drop a forked child's copy of the parent's socket, without sending anything to the server.

    If the child kept its copy, the server would not notice the parent's death while the child lives.
    """
    with suppress(psycopg.Error, OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, connection.fileno(), inheritable=False)
        os.close(nothing)


def _parameters(address: PostgresAddress, limits: SessionLimits) -> dict[str, Any]:
    """Return the parameters for libpq and the server. A value in the address wins."""
    given = conninfo_to_dict(address.conninfo)
    wanted = {
        "application_name": APPLICATION_NAME,
        "client_encoding": "utf8",
        "keepalives_idle": str(KEEPALIVE_IDLE_SECONDS),
        "keepalives_interval": str(KEEPALIVE_APART_SECONDS),
        "keepalives_count": str(KEEPALIVE_COUNT),
        "tcp_user_timeout": str(UNACKNOWLEDGED_SECONDS * 1000),
    }
    wanted = {name: value for name, value in wanted.items() if name not in given}
    if address.is_prepared:  # a transaction pooler refuses options, or applies them to other clients' transactions
        # A later option overrides an earlier one, so the address can change all of them except the last.
        wanted["options"] = f"{limits.options} {_DURABLE} {given.get('options', '')} {_SEEING}"
    return wanted


def _check_server(address: PostgresAddress, connection: Connection) -> None:
    """Refuse a server that this store cannot use. Most answers come with the connection and cost no round trip."""
    version = connection.info.server_version // 10_000
    if version < OLDEST_VERSION:
        raise StoreUnavailable(
            f"{address.shown} is Postgres {version}; holdfast needs {OLDEST_VERSION} or newer: upgrade the server"
        )
    encoding = connection.info.parameter_status("server_encoding") or "UTF8"
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"{address.shown} stores text as {encoding}, which cannot hold every value of a run; "
            "create a database with encoding 'UTF8'"
        )
    given = conninfo_to_dict(address.conninfo).get("target_session_attrs")
    if given not in _WRITABLE and _is_in_recovery(connection):
        raise StoreUnavailable(
            f"{address.shown} is a standby, which is read-only; name the primary, or leave out "
            f"target_session_attrs={given} so that the driver looks for it"
        )
    if not address.is_prepared:
        _check_defaults(address, connection)


def _check_defaults(address: PostgresAddress, connection: Connection) -> None:
    """Refuse session defaults that this store cannot use. Behind a pooler the store cannot set others.

    All sessions of a pooler have the same defaults: those of the role and the database.
    """
    level = _setting(connection, "default_transaction_isolation")
    if level not in SEEING_LEVELS:
        raise StoreUnavailable(
            f"{address.shown} begins transactions at the isolation level {level!r}, at which holdfast would miss "
            f"changes; run: alter role {address.user or '…'} set default_transaction_isolation = 'read committed'"
        )
    is_chosen = _COMMIT_LEVEL in str(conninfo_to_dict(address.conninfo).get("options", ""))
    if not is_chosen and _setting(connection, _COMMIT_LEVEL) == "off":
        raise StoreUnavailable(
            f"{address.shown} does not wait for the disk when it commits ({_COMMIT_LEVEL} is off), so accepted work "
            f"could be lost; run: alter role {address.user or '…'} set {_COMMIT_LEVEL} = on"
        )


def _is_in_recovery(connection: Connection) -> bool:
    # Only from version 14 on, and not through every pooler.
    setting = connection.info.parameter_status("in_hot_standby")
    if setting is not None:
        return setting == "on"
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    return row is not None and bool(row[0])


def _setting(connection: Connection, name: str) -> str:
    row = connection.execute("select current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def _limited(work: PQGen[_Answer], connection: Connection) -> Generator[Any, Any, _Answer]:
    """Run the driver's generator with the connection's time limit. The driver resumes it ten times a second."""
    seconds = connection.answer_seconds
    until = time.monotonic() + seconds
    try:
        wanted = next(work)
        while True:
            ready = yield wanted
            if not ready and (connection.is_given_up or (seconds and time.monotonic() > until)):
                raise Unanswered("given up by its owner" if connection.is_given_up else silence(seconds))
            wanted = work.send(ready)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def silence(seconds: float) -> str:
    """The message for a server that does not answer."""
    return f"no answer within {seconds:g} s"


class Connector:
    """Opens connections. During an outage it tries the server with growing pauses and fails at once in between."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._trying = threading.Lock()
        self._reachability = Reachability("database", address.shown, first_pause_seconds=FIRST_PAUSE_SECONDS)

    def connect(self, limits: SessionLimits = USUAL) -> Connection:
        """Return a new connection.

        Raises:
            StoreUnavailable: The server cannot be reached or used. Driver errors are translated.

        """
        # During an outage one thread tries at a time. The others wait for its outcome, so a dead server gets one try.
        with self._trying if self._reachability.is_away else nullcontext():
            self._reachability.check()
            try:
                connection = connect(self.address, limits)
            except (psycopg.Error, HoldfastError) as error:
                translated = self._reachability.failed(unavailable(self.address, error))
                if translated is error:
                    raise
                raise translated from error
        self._reachability.worked()
        return connection

    def translated(self, error: BaseException) -> BaseException:
        """Return the error to raise to the caller, `from` the given one."""
        translated = unavailable(self.address, error)
        return self._reachability.noted(translated) if is_lost(error) and not is_timeout(error) else translated

    def lost(self, error: BaseException, opened_at: float) -> None:
        """Record that a connection broke, which was opened at this instant of the monotonic clock."""
        self._reachability.lost(unavailable(self.address, error), opened_at)


# Errors

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
            return _translated(address, error, _message(address, error))
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


def _message(address: PostgresAddress, error: psycopg.Error) -> str:
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
