"""Connections: how this store opens one, and the limits each keeps. Nothing else names a setting of a session."""

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

# Statements are few and come again and again: each is prepared when it comes for the second time.
_PREPARE_THRESHOLD = 1

_WRITABLE = ("read-write", "primary")

SEEING_LEVELS = ("read committed", "read uncommitted")
"""Isolation levels at which each statement sees what was committed before it; in Postgres they are the same."""

_SEEING = r"-c default_transaction_isolation=read\ committed"

_COMMIT_LEVEL = "synchronous_commit"
_DURABLE = f"-c {_COMMIT_LEVEL}=on"
"""A commit waits for the disk, whatever the default of the server, database or role is."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """How long a session may take for things; 0 is for ever. The server ends what takes longer.

    `answer_seconds` is the connection's own patience, for a server that does not even say so.
    """

    statement_seconds: float = STATEMENT_SECONDS
    lock_seconds: float = LOCK_SECONDS
    idle_seconds: float = IDLE_IN_TRANSACTION_SECONDS

    @property
    def answer_seconds(self) -> float:
        return self.statement_seconds + GRACE_SECONDS if self.statement_seconds else 0.0

    @property
    def shortest_seconds(self) -> float:
        """No statement meets a limit of the server before."""
        return min(self.statement_seconds or math.inf, self.lock_seconds or math.inf)

    @property
    def options(self) -> str:
        """The same as settings of a session."""
        settings = {
            "statement_timeout": round(self.statement_seconds * 1000),
            "lock_timeout": round(self.lock_seconds * 1000),
            "idle_in_transaction_session_timeout": round(self.idle_seconds * 1000),
            "jit": "off",  # compiling takes longer than any statement of ours
        }
        return " ".join(f"-c {name}={value}" for name, value in settings.items())


USUAL = SessionLimits()
OWN = SessionLimits(idle_seconds=OWN_IDLE_SECONDS)
"""For transactions of ours: between two statements of one our code takes milliseconds. A process that takes longer
stands still, and what it has locked (a topic, a type, a run) must not hold up all others until it goes on."""
UNLIMITED = SessionLimits(statement_seconds=0, lock_seconds=0, idle_seconds=0)


class Unanswered(psycopg.OperationalError):
    """The server did not answer in time, not even with an error: the connection is as good as gone."""


class Connection(psycopg.Connection[Any]):
    """A connection that does not wait for ever. `is_given_up`: whoever waits on it now is let go, from any thread."""

    answer_seconds: float = 0.0
    is_given_up: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pid = os.getpid()

    def wait(self, gen: PQGen[_Answer], *args: Any, **kwargs: Any) -> _Answer:
        return super().wait(_limited(gen, self), *args, **kwargs)

    def __del__(self, *args: Any, getpid: Callable[[], int] = os.getpid) -> None:
        # What a forked child inherits is the parent's: no warning that it was not closed. The driver, too, looks at
        # the process before it says good-bye to the server.
        if getattr(self, "_pid", None) == getpid():
            super().__del__(*args)


def connect(address: PostgresAddress, limits: SessionLimits = USUAL) -> Connection:
    """A connection in autocommit, to a server that is good for this store. Raises errors of the driver as they are."""
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
    """In a forked child: take away its hold on a socket that is the parent's, without a word to the server.

    Were it only forgotten, the server would not notice the parent's death as long as the child lives.
    """
    with suppress(psycopg.Error, OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, connection.fileno(), inheritable=False)
        os.close(nothing)


def _parameters(address: PostgresAddress, limits: SessionLimits) -> dict[str, Any]:
    """What we ask of libpq and of the server where the address does not say otherwise."""
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
    if address.is_prepared:  # else a pooler refuses them, or has them meet other people's transactions
        # Of two the later one counts; the last is not for others to choose.
        wanted["options"] = f"{limits.options} {_DURABLE} {given.get('options', '')} {_SEEING}"
    return wanted


def _check_server(address: PostgresAddress, connection: Connection) -> None:
    """Refuse a server this store cannot live on. Most questions are answered by what it said when greeting."""
    version = connection.info.server_version // 10_000
    if version < OLDEST_VERSION:
        raise StoreUnavailable(
            f"{address.shown} is Postgres {version}; holdfast needs {OLDEST_VERSION} or newer: upgrade the server"
        )
    encoding = connection.info.parameter_status("server_encoding") or "UTF8"
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"{address.shown} keeps text as {encoding}, which cannot hold all that runs may contain; "
            "create a database with encoding 'UTF8'"
        )
    given = conninfo_to_dict(address.conninfo).get("target_session_attrs")
    if given not in _WRITABLE and _is_in_recovery(connection):
        raise StoreUnavailable(
            f"{address.shown} is a standby, which cannot be written; name the primary, or leave out "
            f"target_session_attrs={given} so that it is looked for"
        )
    if not address.is_prepared:
        _check_defaults(address, connection)


def _check_defaults(address: PostgresAddress, connection: Connection) -> None:
    """Refuse defaults this store cannot live with, of a session to which we could not say anything else.

    A pooler's other sessions have the same defaults, of role and database.
    """
    level = _setting(connection, "default_transaction_isolation")
    if level not in SEEING_LEVELS:
        raise StoreUnavailable(
            f"{address.shown} has transactions begin at the isolation level {level!r}, at which holdfast would lose "
            f"news; run: alter role {address.user or '…'} set default_transaction_isolation = 'read committed'"
        )
    is_chosen = _COMMIT_LEVEL in str(conninfo_to_dict(address.conninfo).get("options", ""))
    if not is_chosen and _setting(connection, _COMMIT_LEVEL) == "off":
        raise StoreUnavailable(
            f"{address.shown} does not wait for the disk when it commits ({_COMMIT_LEVEL} is off), so accepted work "
            f"could be lost; run: alter role {address.user or '…'} set {_COMMIT_LEVEL} = on"
        )


def _is_in_recovery(connection: Connection) -> bool:
    told = connection.info.parameter_status("in_hot_standby")  # not before version 14, and not through every pooler
    if told is not None:
        return told == "on"
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    return row is not None and bool(row[0])


def _setting(connection: Connection, name: str) -> str:
    row = connection.execute("select current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def _limited(work: PQGen[_Answer], connection: Connection) -> Generator[Any, Any, _Answer]:
    """The driver's own work, ended when the connection's patience is. The driver looks up ten times a second."""
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
    """What is said of a server that does not answer."""
    return f"no answer within {seconds:g} s"
