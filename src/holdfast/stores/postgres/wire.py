"""A wire: a connection that belongs to an event loop, on which a call is sent at once and answered without a thread.

To hand a job to a thread and back costs as much as a small statement takes. So what is one statement with one value
for an answer is asked for here. Whatever cannot be done here and now, or goes wrong in a way that is worth
repeating, is left to the sessions: they know how to wait and to repeat.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.stores.postgres.connections import USUAL, Connection, Limits, Unanswered, disown
from holdfast.stores.postgres.outage import Outage
from holdfast.stores.postgres.sessions import Sessions, Work
from holdfast.stores.postgres.trouble import is_cancelled, is_conflict, is_lost, is_timeout, unavailable

STOP_SECONDS = 5.0
RETRY_SECONDS = 1.0

# What is longer would hold up the loop while it is copied.
ARGUMENTS_LIMIT_BYTES = 64 * 1024

Value = bytes | None


class Wire:
    """One connection, one call at a time; it is opened by the first call, apart from the loop."""

    def __init__(self, outage: Outage, sessions: Sessions, *, limits: Limits = USUAL) -> None:
        self._outage = outage
        self._sessions = sessions
        self._limits = limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: _Link | None = None
        self._is_opening = False
        self._is_stopped = False
        self._retry_at = 0.0

    def call(self, statement: str, *arguments: Value, again: Work[Value] | None = None) -> asyncio.Future[Value]:
        """The value of a statement (`select f($1, $2)`) in a transaction of its own; None if it is null or no row.

        Arguments and value are text as bytes. `again` is done instead after a lost connection, as in `Sessions.run`.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop and self._link is not None and self._link.is_free and _is_short(arguments):
            call = _Call(statement, arguments, again, loop.create_future())
            self._link.send(call)
            return call.future
        self._open(loop)
        return self._sessions.run(_job(statement, arguments), again=again)

    # Its life

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Wait for the answer that is due, if any, and close."""
        self._is_stopped = True
        link = self._link
        if link is not None and link.call is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait([link.call.future], timeout=seconds)
        self.close()

    def close(self) -> None:
        """Close at once. On its loop, or when that runs no longer."""
        self._is_stopped = True
        link, self._link = self._link, None
        if link is not None:
            link.end(StoreUnavailable(f"the store {self._outage.address.shown} was closed before it could answer"))

    def abandon(self) -> None:
        """In a forked child: use and close nothing of the parent's."""
        self._is_stopped = True
        link, self._link = self._link, None
        if link is not None:
            disown(link.connection)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_stopped or self._is_opening:
            return
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                return  # it is in use there
            self._loop = loop
            if self._link is not None:
                self._link.end(None)  # whoever waited was on a loop that is gone
            self._link, self._retry_at = None, 0.0
        if self._link is None and loop.time() >= self._retry_at:
            self._is_opening = True
            threading.Thread(target=self._connect, args=(loop,), name="holdfast-postgres-wire", daemon=True).start()

    def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread, because it takes a while, or for ever."""
        connection = None
        with suppress(HoldfastError):  # the sessions meet it too, and tell whoever asks
            connection = self._outage.connect(self._limits)
        try:
            loop.call_soon_threadsafe(self._connected, loop, connection)
        except RuntimeError:  # the loop is closed
            self._is_opening = False
            if connection is not None:
                connection.close()

    def _connected(self, loop: asyncio.AbstractEventLoop, connection: Connection | None) -> None:
        self._is_opening = False
        if connection is None:
            self._retry_at = loop.time() + RETRY_SECONDS
        elif self._is_stopped or self._loop is not loop:
            connection.close()
        else:
            self._link = _Link(loop, connection, self._outage, self, self._limits)

    # For the link

    def lost(self, link: _Link) -> None:
        """The connection broke."""
        if self._link is link:
            self._link = None

    def hand_on(self, call: _Call, *, is_repeat: bool) -> None:
        """Have the sessions do what could not be done here. A repetition: it may have been done after all."""
        if call.future.done():
            return
        first = _job(call.statement, call.arguments)
        try:
            done = self._sessions.run((call.again or first) if is_repeat else first, again=call.again)
        except StoreUnavailable as closed:
            call.future.set_exception(closed)
        else:
            done.add_done_callback(call.settle_like)


class _Call:
    """A statement under way, and who waits for its value."""

    __slots__ = ("again", "arguments", "future", "is_preparing", "statement")

    def __init__(
        self,
        statement: str,
        arguments: tuple[Value, ...],
        again: Work[Value] | None,
        future: asyncio.Future[Value],
    ) -> None:
        self.statement = statement
        self.arguments = arguments
        self.again = again
        self.future = future
        self.is_preparing = False

    def settle(self, value: Value) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def settle_like(self, other: asyncio.Future[Value]) -> None:
        if other.cancelled():
            self.future.cancel()
        elif (error := other.exception()) is not None:
            self.fail(error)
        else:
            self.settle(other.result())


class _Link:
    """A connection that a loop watches. All of it happens on that loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: Connection, outage: Outage, wire: Wire, limits: Limits
    ) -> None:
        self.connection = connection
        self.call: _Call | None = None
        self._pgconn = connection.pgconn
        self._socket = connection.pgconn.socket
        self._loop = loop
        self._outage = outage
        self._wire = wire
        self._limits = limits
        self._opened_at = self._sent_at = time.monotonic()
        self._names: dict[str, bytes] = {}
        self._is_full = False
        self._result: pq.abc.PGresult | None = None
        self._watch: asyncio.TimerHandle | None = None
        loop.add_reader(self._socket, self._on_readable)

    @property
    def is_free(self) -> bool:
        return self.call is None

    def send(self, call: _Call) -> None:
        self.call = call
        self._sent_at = time.monotonic()
        if self._watch is None and self.connection.answer_seconds:
            self._watch = self._loop.call_later(self.connection.answer_seconds, self._look)
        try:
            self._send(call)
        except psycopg.Error as error:
            self._lose(error)

    def end(self, error: BaseException | None) -> None:
        """Close; whoever waits gets the error."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        with suppress(psycopg.Error):
            self.connection.close()
        call, self.call = self.call, None
        if call is not None and error is not None:
            call.fail(error)

    # Sending

    def _send(self, call: _Call) -> None:
        statement = call.statement.encode()
        if not self._outage.address.is_prepared:
            self._pgconn.send_query_params(statement, call.arguments)
        elif (name := self._names.get(call.statement)) is not None:
            self._pgconn.send_query_prepared(name, call.arguments)
        else:
            call.is_preparing = True
            self._pgconn.send_prepare(_name(self._names), statement)
        self._flush()

    def _flush(self) -> None:
        is_full = bool(self._pgconn.flush())  # the socket takes no more for the moment
        if is_full and not self._is_full:
            self._loop.add_writer(self._socket, self._on_writable)
        elif self._is_full and not is_full:
            self._loop.remove_writer(self._socket)
        self._is_full = is_full

    def _on_writable(self) -> None:
        try:
            self._flush()
        except psycopg.Error as error:
            self._lose(error)

    # Receiving

    def _on_readable(self) -> None:
        try:
            self._pgconn.consume_input()
            while self._pgconn.notifies() is not None:
                pass
            while self.call is not None and not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    self._answered(self.call)
                    return
                self._result = result
        except psycopg.Error as error:
            self._lose(error)

    def _answered(self, call: _Call) -> None:
        result, self._result = self._result, None
        assert result is not None
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            if call.is_preparing:
                call.is_preparing = False
                self._names[call.statement] = _name(self._names)
                self._send(call)
                return
            self.call = None
            call.settle(result.get_value(0, 0) if result.ntuples else None)
        else:
            self._refused(call, error_from_result(result, encoding="utf-8"))

    def _refused(self, call: _Call, error: psycopg.Error) -> None:
        if is_lost(error) and not is_timeout(error):
            self._lose(error)
            return
        self.call = None
        if is_conflict(error) or is_cancelled(error, time.monotonic() - self._sent_at, self._limits):
            self._wire.hand_on(call, is_repeat=False)
            return
        translated = unavailable(self._outage.address, error)
        translated.__cause__ = error
        call.fail(translated)

    # Trouble

    def _look(self) -> None:
        """Give up a connection that has not answered for too long."""
        self._watch = None
        if self.call is None:
            return
        left = self._sent_at + self.connection.answer_seconds - time.monotonic()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look)
        else:
            self._lose(Unanswered(f"no answer within {self.connection.answer_seconds:g} s"))

    def _lose(self, error: psycopg.Error) -> None:
        call, self.call = self.call, None
        self._outage.lost(error, self._opened_at)
        self._wire.lost(self)
        self.end(None)
        if call is not None:
            self._wire.hand_on(call, is_repeat=True)


def _is_short(arguments: Sequence[Value]) -> bool:
    return sum(len(one) for one in arguments if one is not None) <= ARGUMENTS_LIMIT_BYTES


def _name(known: dict[str, bytes]) -> bytes:
    """For the next statement that is prepared."""
    return b"holdfast_%d" % len(known)


def _job(statement: str, arguments: Sequence[Value]) -> Work[Value]:
    """The same call for a session."""

    def job(connection: psycopg.Connection[Any]) -> Value:
        cursor = psycopg.RawCursor(connection)
        cursor.execute(statement.encode(), [None if one is None else one.decode() for one in arguments])
        result = cursor.pgresult
        return result.get_value(0, 0) if result is not None and result.ntuples else None

    return job
