"""The session of the event loop: runs scripts on the loop itself, on a connection that belongs to it.

Handing a job to a thread and back costs as much as a small statement, and far more on a busy machine. So short scripts
run here. A script that cannot run here now, or that fails in a way worth repeating, goes to the sessions in threads:
they can wait and repeat.
"""

from __future__ import annotations

import asyncio
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait

from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.stores.postgres.connections import (
    USUAL,
    Connection,
    Connector,
    SessionLimits,
    Unanswered,
    disown,
    is_cancelled,
    is_conflict,
    is_lost,
    is_overdue,
    is_timeout,
    silence,
    unavailable,
)
from holdfast.stores.postgres.scripts import Script, Statement, Statements, run_script
from holdfast.stores.postgres.sessions import Sessions, Work

STOP_SECONDS = 5.0
RETRY_SECONDS = 1.0

# Longer arguments would block the loop while they are copied.
ARGUMENTS_LIMIT_CHARACTERS = 64 * 1024

# Plain numbers: arithmetic on enum members costs more than everything else done for an answer.
_READABLE, _WRITABLE, _WANTS_TO_WRITE = int(Ready.R), int(Ready.W), int(Wait.W)

T = TypeVar("T")


class LoopSession:
    """One connection with one script at a time. The first script opens it, in a thread."""

    def __init__(self, connector: Connector, sessions: Sessions, *, limits: SessionLimits = USUAL) -> None:
        self._connector = connector
        self._sessions = sessions
        self._limits = limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: DrivenConnection | None = None
        self._job: _LoopJob[Any] | None = None
        self._is_opening = False
        self._is_stopped = False
        self._retry_at = 0.0
        self._opener: threading.Thread | None = None
        self._arriving = threading.Lock()
        self._arrived: Connection | None = None
        """A new connection on its way from the thread that opened it to the loop."""

    def run(
        self, script: Callable[[], Script[T]], *, again: Callable[[], Script[T]] | None = None
    ) -> asyncio.Future[T]:
        """Run a script on this loop or in a session's thread. `script` is called once per attempt.

        After a lost connection `again` runs instead, if given, because the first attempt may have been applied.
        """
        loop = asyncio.get_running_loop()
        connection = self._connection
        if connection is not None and loop is self._loop and self._job is None:
            self._job = job = _LoopJob(script, again or script, loop.create_future())
            connection.run(self._perform(job, connection))
            return job.future
        self._open(loop)
        return self._sessions.run(_in_thread(script), again=None if again is None else _in_thread(again))

    # Lifetime

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Wait for the answer to the current script, if any, and close."""
        self._is_stopped = True
        if self._job is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait([self._job.future], timeout=seconds)
        self.close()

    def close(self) -> None:
        """Close at once. Call this on the session's loop, or after that loop has stopped."""
        self._is_stopped = True
        self._drop_arrived()
        connection, self._connection = self._connection, None
        job, self._job = self._job, None
        if connection is not None:
            connection.end()
        if job is not None and not job.future.done() and self._loop is not None and not self._loop.is_closed():
            shown = self._connector.address.shown
            job.future.set_exception(StoreUnavailable(f"the store {shown} was closed before it could answer"))

    def abandon(self) -> None:
        """Drop the connection in a forked child, without closing it for the parent."""
        self._is_stopped = True
        self._arriving = threading.Lock()  # a thread of the parent may hold the old one
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            disown(arrived)
        connection, self._connection = self._connection, None
        if connection is not None:
            disown(connection.connection)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_opening and self._has_missed_its_loop():
            self._is_opening = False
            self._drop_arrived()
        if self._is_stopped or self._is_opening:
            return
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                return  # another loop still uses the connection
            if self._connection is not None:
                self._connection.end()  # its callers were on a loop that is closed
            self._loop = loop
            self._connection, self._job, self._retry_at = None, None, 0.0
        if self._connection is None and time.monotonic() >= self._retry_at:
            self._is_opening = True
            self._opener = threading.Thread(
                target=self._connect, args=(loop,), name="holdfast-postgres-loop", daemon=True
            )
            self._opener.start()

    def _has_missed_its_loop(self) -> bool:
        """True if the loop was closed after a connection was opened for it, and before it took the connection."""
        is_open = self._loop is not None and not self._loop.is_closed()
        return not is_open and self._opener is not None and not self._opener.is_alive()

    def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open a connection. Runs in a thread, because connecting may take long or never end."""
        connection = None
        with suppress(HoldfastError):  # the sessions get the same error and raise it to their callers
            connection = self._connector.connect(self._limits)
        with self._arriving:
            self._arrived = connection
        if self._is_stopped:  # `close` may have looked for it before it was there
            self._drop_arrived()
        try:
            loop.call_soon_threadsafe(self._connected, loop)
        except RuntimeError:  # the loop is closed
            self._is_opening = False
            self._drop_arrived()

    def _connected(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_opening = False
        connection = self._take_arrived()
        if connection is None:
            self._retry_at = time.monotonic() + RETRY_SECONDS
        elif self._is_stopped or self._loop is not loop:
            connection.close()
        else:
            is_prepared = self._connector.address.is_prepared
            self._connection = DrivenConnection(connection, loop, is_prepared=is_prepared, on_loss=self._on_loss)

    def _take_arrived(self) -> Connection | None:
        with self._arriving:
            arrived, self._arrived = self._arrived, None
        return arrived

    def _drop_arrived(self) -> None:
        """Close a connection that the loop has not taken. A loop that stops does not call what is scheduled."""
        arrived = self._take_arrived()
        if arrived is not None:
            arrived.close()

    def _on_loss(self, error: psycopg.Error) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connector.lost(error, connection.opened_at)

    # The current script

    async def _perform(self, job: _LoopJob[T], connection: DrivenConnection) -> None:
        """Run a script, settle its future, and leave no transaction open."""
        try:
            script = job.script()
            said = next(script)
            while job.is_begun or _is_short(said):
                job.is_begun = True
                try:
                    value = await connection.ask(said)
                except Exception as error:  # noqa: BLE001 - after any error the script has to undo its part
                    said = script.throw(error)
                else:
                    said = script.send(value)
            script.close()
            self._fall_back(job, None)
        except StopIteration as end:
            if not job.future.done():
                job.future.set_result(end.value)
        except GeneratorExit:
            raise  # `close` ended the connection, and fails the future itself
        except BaseException as error:  # noqa: BLE001 - every error goes to the caller; the loop goes on
            self._fall_back(job, error)
        if self._connection is connection and not connection.is_idle:
            with suppress(psycopg.Error):
                await connection.ask((b"rollback", ()))
        if self._job is job:
            self._job = None

    def _fall_back(self, job: _LoopJob[Any], error: BaseException | None) -> None:
        """Leave a script to the sessions if they can run or repeat it. Otherwise fail its future with the error."""
        if job.future.done():
            return
        if error is None or is_conflict(error) or is_cancelled(error, job.seconds, self._limits):
            work = _in_thread(job.script)
        elif is_overdue(error) or (is_lost(error) and not is_timeout(error)):  # overdue: this process stood still
            work = _in_thread(job.again)
        else:
            _fail(job.future, unavailable(self._connector.address, error), error)
            return
        try:
            done = self._sessions.run(work, again=_in_thread(job.again))
        except StoreUnavailable as closed:
            job.future.set_exception(closed)
        else:
            done.add_done_callback(job.settle_like)


class _LoopJob(Generic[T]):
    """A running script and the future for its answer."""

    def __init__(
        self, script: Callable[[], Script[T]], again: Callable[[], Script[T]], future: asyncio.Future[T]
    ) -> None:
        self.script = script
        self.again = again
        self.future = future
        self.is_begun = False
        self._began_at = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_at

    def settle_like(self, other: asyncio.Future[T]) -> None:
        """Copy the outcome of the sessions' future."""
        if other.cancelled() or self.future.done():
            self.future.cancel()
        elif (error := other.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(other.result())


def _is_short(statement: Statement | Statements) -> bool:
    if isinstance(statement, Statements):
        return all(map(_is_short, statement.statements))
    characters = 0
    for one in statement[1]:  # this runs for every statement, and a plain loop is faster than `sum`
        if type(one) is str:
            characters += len(one)
    return characters <= ARGUMENTS_LIMIT_CHARACTERS


def _in_thread(script: Callable[[], Script[T]]) -> Work[T]:
    return lambda connection: run_script(connection, script())


def _fail(future: asyncio.Future[Any], translated: BaseException, error: BaseException) -> None:
    if translated is not error:
        translated.__cause__ = error
    future.set_exception(translated)


class DrivenConnection:
    """The driver's async connection, driven by the event loop without a task.

    The driver encodes, prepares, sends and decodes. This class only resumes it when the socket is ready, and notices
    when the connection is lost or silent for too long. It runs one coroutine at a time, which may await only this
    connection.

    There is no task. Creating one costs as much as a small statement, and code that cancels all tasks of a loop would
    leave the connection in the middle of an answer. `on_loss` is called when the connection is lost.
    """

    def __init__(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        *,
        is_prepared: bool,
        on_loss: Callable[[psycopg.Error], None],
    ) -> None:
        self.connection = connection
        self.opened_at = time.monotonic()
        self._loop = loop
        self._on_loss = on_loss
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
            self._watch = self._loop.call_later(self.connection.answer_seconds, self._check_silence)
        self._resume(work.send, None)

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

    def _resume(self, resume: Callable[[Any], Any], value: object) -> None:
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
            self._resume(self._work.send, _READABLE)
        else:
            self._receive()

    def _on_writable(self) -> None:
        if self._work is not None:
            self._resume(self._work.send, _WRITABLE)

    # Losses

    def _receive(self) -> None:
        """Read input that the server sends unasked: a notice, or the end of the connection."""
        try:
            self._pgconn.consume_input()
            while self._pgconn.notifies() is not None:
                pass
        except psycopg.Error as error:
            self._lose(error)

    def _check_silence(self) -> None:
        """Fail the coroutine if the server has not answered for too long."""
        self._watch = None
        if self._work is None:
            return
        seconds = self.connection.answer_seconds
        left = self._sent_at + seconds - time.monotonic()
        if left > 0:
            self._watch = self._loop.call_later(left, self._check_silence)
        else:
            self._resume(self._work.throw, Unanswered(silence(seconds)))

    def _lose(self, error: psycopg.Error) -> None:
        if self._lost is None:
            self._lost = error
            self.end()
            self._on_loss(error)


def _joined(chain: Statements) -> Statement:
    """Join several statements into one. It cannot be prepared, so the cursor inserts the arguments as literals."""
    statement = b"; ".join(statement for statement, _ in chain.statements)
    return statement, tuple(argument for _, arguments in chain.statements for argument in arguments)


class _Driver(psycopg.AsyncConnection[Any]):
    """The same connection for the driver's async cursors. It never waits: `DrivenConnection` resumes its work."""

    def __init__(self, opened: Connection) -> None:
        super().__init__(opened.pgconn)
        self._autocommit = opened.autocommit  # like the driver's own `connect`, because the setter must be awaited

    @types.coroutine
    def wait(self, gen: PQGen[T], *_: object, **__: object) -> Generator[Any, Any, T]:
        """Yield the driver's wait conditions to the caller that drives the coroutine."""
        return (yield from gen)

    def __del__(self, *_: object) -> None:
        """Do nothing: `Connection` already warns if it was not closed."""
