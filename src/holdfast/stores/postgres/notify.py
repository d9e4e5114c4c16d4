"""NOTIFY and LISTEN: one connection, in a thread of its own, that carries hints between processes.

Nothing depends on it: a lost hint costs only the delay until the next poll. This connection sends hints outside the
transactions of operations, because transactions that notify share one lock and their commits would wait for each other.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
import psycopg
from psycopg import sql

from holdfast.core.errors import HoldfastError
from holdfast.core.hint import Hint
from holdfast.stores.postgres.connections import Connection, SessionLimits, disown
from holdfast.stores.postgres.connector import Connector
from holdfast.stores.postgres.errors import is_lost, is_timeout

APART_SECONDS = 0.01
SPARSE_APART_SECONDS = 0.002
SPARSE = 2
PING_SECONDS = 15.0
RETRY_SECONDS = 0.5
UNUSED_SECONDS = 60.0
PAYLOAD_LIMIT_BYTES = 1_000
SQL_SENDER = ""
"""The sender in notifications of SQL producers."""

_LIMITS = SessionLimits(statement_seconds=2.0, lock_seconds=2.0, idle_seconds=10.0)
_GIVEN_UP_SECONDS = 1.0


class NotifyConnection:
    """Sends hints to other processes, and receives theirs while this process has listeners.

    Frequent hints are sent together, at most a hundred times a second. A rare hint is sent at once. Its thread calls
    `heard` with hints, and `requested` when SQL producers may have left requests. The connection is opened on demand
    and closed when it is no longer needed.
    """

    def __init__(
        self,
        connector: Connector,
        heard: Callable[[Hint], None],
        requested: Callable[[], None],
        *,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self._connector = connector
        self._heard = heard
        self._requested = requested
        self._ping_seconds = ping_seconds
        self._channel = connector.address.schema  # so that a plain `notify holdfast` in psql works
        self._sender = secrets.token_hex(4)
        self._changing = threading.Lock()
        self._waker = _Waker()
        self._thread: threading.Thread | None = None
        self._is_open = True
        self._is_wanted = False
        self._news = 0
        self._types: set[str] = set()
        # Used only by its thread
        self._connection: Connection | None = None
        self._opened_at = 0.0
        self._is_listening = False
        self._told_at = 0.0
        self._heard_at = 0.0
        self._retry_at = 0.0

    # From any thread

    def tell(self, types: Iterable[str]) -> None:
        """Queue a hint for other processes, with the types of runs that became ready. It is sent at once or batched."""
        with self._changing:
            self._news += 1
            self._types.update(types)
            is_first = self._news == 1
        if is_first:
            self._rouse()

    def listen(self, *, is_wanted: bool) -> None:
        """Begin or stop listening to other processes."""
        self._is_wanted = is_wanted
        self._rouse()

    def stop(self, seconds: float) -> None:
        """Send the queued hints within a time limit, and close the connection."""
        with self._changing:
            self._is_open = False
            thread = self._thread
        if thread is not None:
            self._waker.wake()
            thread.join(seconds)
            if thread.is_alive() and (connection := self._connection) is not None:
                connection.is_given_up = True
                thread.join(_GIVEN_UP_SECONDS)
        if thread is None or not thread.is_alive():
            self._waker.close()

    def abandon(self) -> None:
        """Drop the parent's connection in a forked child, without a message to the server and without a lock."""
        self._is_open = False
        self._changing = threading.Lock()
        self._thread = None
        self._waker.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            disown(connection)

    def _rouse(self) -> None:
        with self._changing:
            if not self._is_open:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="holdfast-postgres-line", daemon=True)
                self._thread.start()
        self._waker.wake()

    # In its own thread

    def _serve(self) -> None:
        while self._is_open:
            self._waker.wait(self._connection, self._patience())
            self._attend()
        if self._news and not self._retry_at:  # for example a short-lived process that has just started a run
            self._attend()
        self._hang_up()

    def _patience(self) -> float | None:
        """Seconds until something is due; None if only an event can make something due."""
        now = time.monotonic()
        if self._connection is None:
            is_needed = self._news > 0 or self._is_wanted
            return max(0.0, self._retry_at - now) if is_needed else None
        if self._news:
            # A single producer that waits for each answer must not wait for a batch. Many hints are worth batching.
            apart = SPARSE_APART_SECONDS if self._news <= SPARSE else APART_SECONDS
            return max(0.0, self._told_at + apart - now)
        if self._is_wanted:
            return max(0.0, self._heard_at + self._ping_seconds - now) if self._is_listening else 0.0
        return 0.0 if self._is_listening else max(0.0, self._told_at + UNUSED_SECONDS - now)

    def _attend(self) -> None:
        """Read and send what is due. After an error, close the connection; it is opened again with pauses."""
        try:
            self._read()
            if self._patience() == 0.0 or not self._is_open:
                self._act()
        except (psycopg.Error, HoldfastError) as error:
            began = time.monotonic() if self._connection is None else self._opened_at
            self._retry_at = began + RETRY_SECONDS  # so at once, if the connection lasted longer than that
            if is_lost(error) and not is_timeout(error):
                self._connector.lost(error, self._opened_at)
            self._hang_up()

    def _act(self) -> None:
        if not self._news and not self._is_wanted:
            self._hang_up()
            return
        connection = self._connected()
        if self._is_wanted != self._is_listening:
            self._switch(connection)
        if self._news:
            self._send(connection)
        elif time.monotonic() - self._heard_at >= self._ping_seconds:
            connection.execute("select 1")  # a silent connection does not show that the server is gone
            self._heard_at = time.monotonic()

    def _switch(self, connection: Connection) -> None:
        statement = sql.SQL("listen {}" if self._is_wanted else "unlisten {}")
        connection.execute(statement.format(sql.Identifier(self._channel)), prepare=False)
        self._is_listening = not self._is_listening
        self._heard_at = time.monotonic()
        if self._is_listening:
            # Something may have changed before this connection listened.
            self._requested()
            self._heard(Hint(is_elsewhere=True))

    def _send(self, connection: Connection) -> None:
        with self._changing:
            self._news = 0
            types, self._types = self._types, set()
        try:
            connection.execute("select pg_notify(%s, %s)", (self._channel, _payload(self._sender, types)))
        except psycopg.Error:
            self.tell(types)
            raise
        self._told_at = self._heard_at = time.monotonic()

    def _read(self) -> None:
        """Read the notifications that have arrived."""
        connection = self._connection
        if connection is None:
            return
        connection.pgconn.consume_input()
        payloads = []
        while (notification := connection.pgconn.notifies()) is not None:
            payloads.append(notification.extra)
        self._hear(payloads)

    def _hear(self, payloads: list[bytes]) -> None:
        ready: set[str] = set()
        is_news = has_requests = False
        for payload in payloads:
            sender, types = _read_payload(payload)
            has_requests = has_requests or sender == SQL_SENDER
            if sender != self._sender:
                is_news = True
                ready |= types
        if payloads:
            self._heard_at = time.monotonic()
        if has_requests:
            self._requested()
        if is_news:
            self._heard(Hint(ready=frozenset(ready), is_elsewhere=True))

    def _connected(self) -> Connection:
        if self._connection is None:
            # Known before anything can fail, so that a failure closes it.
            self._connection = connection = self._connector.connect(_LIMITS)
            self._opened_at = self._heard_at = self._told_at = time.monotonic()
            if self._connector.address.is_prepared:
                connection.execute("set synchronous_commit = off")  # hints need not survive a crash
            connection.add_notify_handler(lambda one: self._hear([one.payload.encode()]))
            self._retry_at = 0.0
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._is_listening = False
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


class _Waker:
    """Waits until a connection is readable or another thread calls `wake`."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        with suppress(OSError):  # the pipe is full of wake-ups, or closed
            os.write(self._in, b"!")

    def wait(self, connection: Connection | None, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        if connection is not None and connection.pgconn.socket >= 0:
            poll.register(connection.pgconn.socket, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)
        with suppress(OSError):  # the pipe is empty
            os.read(self._out, 4_096)

    def close(self) -> None:
        if self._in >= 0:
            os.close(self._in)
            os.close(self._out)
            self._in = self._out = -1


def _payload(sender: str, types: Iterable[str]) -> str:
    """Encode the sender and the types that became ready. If they exceed the limit, no type is named."""
    whole = msgspec.json.encode([sender, *sorted(types)])
    return (whole if len(whole) <= PAYLOAD_LIMIT_BYTES else msgspec.json.encode([sender])).decode()


def _read_payload(payload: bytes) -> tuple[str, set[str]]:
    try:
        sender, *types = msgspec.json.decode(payload, type=list[str])
    except (msgspec.DecodeError, ValueError):  # for example a `notify` from psql
        return SQL_SENDER, set()
    return sender, set(types)
