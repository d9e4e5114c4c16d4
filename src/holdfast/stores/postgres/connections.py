"""Connections of this store: how they are opened, and their time limits. Session settings are set only here."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.postgres.address import PostgresAddress

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
    told = connection.info.parameter_status("in_hot_standby")  # only from version 14 on, and not through every pooler
    if told is not None:
        return told == "on"
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
