"""The driver's async connection, driven by the event loop without a task.

The driver encodes, prepares, sends and decodes. This module only resumes it when the socket is ready, and notices when
the connection is lost or silent for too long. It repeats nothing and has no thread. Everything happens on its loop.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait

from holdfast.stores.postgres.connections import Connection, Unanswered, silence
from holdfast.stores.postgres.errors import is_lost, is_timeout
from holdfast.stores.postgres.scripts import Statement, Statements

T = TypeVar("T")

# Plain numbers: arithmetic on enum members costs more than everything else done for an answer.
_READABLE, _WRITABLE, _WANTS_TO_WRITE = int(Ready.R), int(Ready.W), int(Wait.W)


class AsyncConnection:
    """Runs one coroutine at a time. The coroutine may await only this connection.

    There is no task. Creating one costs as much as a small statement, and code that cancels all tasks of a loop would
    leave the connection in the middle of an answer. `broke` is called when the connection is lost.
    """

    def __init__(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        *,
        is_prepared: bool,
        broke: Callable[[psycopg.Error], None],
    ) -> None:
        self.connection = connection
        self.opened_at = time.monotonic()
        self._loop = loop
        self._broke = broke
        self._pgconn = connection.pgconn
        self._socket = connection.pgconn.socket
        driver = _Driver(connection)
        driver.prepare_threshold = 0 if is_prepared else None
        self._cursor = psycopg.AsyncCursor(driver)
        self._chain_cursor: psycopg.AsyncCursor[Any] = psycopg.AsyncClientCursor(driver)
        self._work: Coroutine[Any, Any, None] | None = None
        self._lost: psycopg.Error | None = None
        self._sent_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._is_full = False
        # Also while no answer is due, so that a loss is noticed before the next statement.
        loop.add_reader(self._socket, self._on_readable)

    @property
    def is_idle(self) -> bool:
        """True if no transaction is open."""
        return self._pgconn.transaction_status == pq.TransactionStatus.IDLE

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that raises nothing. Its first statement is sent before this method returns."""
        assert self._work is None
        self._work = work
        if self._watch is None and self.connection.answer_seconds:
            self._watch = self._loop.call_later(self.connection.answer_seconds, self._look)
        self._go_on(work.send, None)

    async def ask(self, said: Statement | Statements) -> Any:
        """Execute a statement and return its one value, or None if it is null or there is no row."""
        if self._lost is not None:
            raise self._lost
        self._sent_at = time.monotonic()
        cursor = self._cursor
        if isinstance(said, Statements):
            cursor, said = self._chain_cursor, _joined(said)
        try:
            await cursor.execute(*said)
        except psycopg.Error as error:
            if is_lost(error) and not is_timeout(error):
                self._lose(error)
            raise
        row = None
        is_more: bool | None = True
        while is_more:
            assert cursor.pgresult is not None
            row = await cursor.fetchone() if cursor.pgresult.nfields else row
            is_more = cursor.nextset()
        return row[0] if row else None

    def end(self) -> None:
        """Close the connection and drop the coroutine. Callers that wait get no answer."""
        self._work = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        with suppress(psycopg.Error):
            self.connection.close()

    # The driver's work

    def _go_on(self, resume: Callable[[Any], Any], value: object) -> None:
        """Resume the coroutine until it has to wait for the socket."""
        try:
            wanted = resume(value)
        except StopIteration:
            self._work = None
            wanted = 0
        if (is_full := bool(wanted & _WANTS_TO_WRITE)) is not self._is_full:
            self._watch_writing(is_full=is_full)

    def _watch_writing(self, *, is_full: bool) -> None:
        self._is_full = is_full
        if is_full:
            self._loop.add_writer(self._socket, self._on_writable)
        elif self._lost is None:
            self._loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        if self._work is not None:
            self._go_on(self._work.send, _READABLE)
        else:
            self._hear()

    def _on_writable(self) -> None:
        if self._work is not None:
            self._go_on(self._work.send, _WRITABLE)

    # Losses

    def _hear(self) -> None:
        """Read input that the server sends unasked: a notice, or the end of the connection."""
        try:
            self._pgconn.consume_input()
            while self._pgconn.notifies() is not None:
                pass
        except psycopg.Error as error:
            self._lose(error)

    def _look(self) -> None:
        """Fail the coroutine if the server has not answered for too long."""
        self._watch = None
        if self._work is None:
            return
        seconds = self.connection.answer_seconds
        left = self._sent_at + seconds - time.monotonic()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look)
        else:
            self._go_on(self._work.throw, Unanswered(silence(seconds)))

    def _lose(self, error: psycopg.Error) -> None:
        if self._lost is None:
            self._lost = error
            self.end()
            self._broke(error)


def _joined(chain: Statements) -> Statement:
    """Join several statements into one. It cannot be prepared, so the cursor inserts the arguments as literals."""
    statement = b"; ".join(statement for statement, _ in chain.statements)
    return statement, tuple(argument for _, arguments in chain.statements for argument in arguments)


class _Driver(psycopg.AsyncConnection[Any]):
    """The same connection for the driver's async cursors. It never waits: `AsyncConnection` resumes its work."""

    def __init__(self, opened: Connection) -> None:
        super().__init__(opened.pgconn)
        self._autocommit = opened.autocommit  # like the driver's own `connect`, because the setter must be awaited

    @types.coroutine
    def wait(self, gen: PQGen[T], *_: object, **__: object) -> Generator[Any, Any, T]:
        """Yield the driver's wait conditions to the caller that drives the coroutine."""
        return (yield from gen)

    def __del__(self, *_: object) -> None:
        """Do nothing: `Connection` already warns if it was not closed."""
