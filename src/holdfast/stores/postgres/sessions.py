"""Sessions: threads that run jobs, each on a connection of its own.

A job is a function of a connection. It may run more than once: after a conflict with another transaction it repeats at
once, after a lost connection on a new one. An error that does not go away quickly is raised to the caller.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, NoReturn, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import (
    USUAL,
    Connection,
    Connector,
    SessionLimits,
    disown,
    is_cancelled,
    is_conflict,
    is_lost,
    is_overdue,
    is_timeout,
)

CONFLICT_LIMIT = 20
LOSS_LIMIT = 2
STOP_SECONDS = 10.0

_CONFLICT_PAUSE_SECONDS = 0.001
_CONFLICT_PAUSE_LIMIT_SECONDS = 0.1
_GIVEN_UP_SECONDS = 1.0

T = TypeVar("T")

Work = Callable[[psycopg.Connection[Any]], T]


class _Job(Generic[T]):
    """The work of the first attempt, the work after a lost connection, and the future for the answer."""

    __slots__ = ("again", "first", "future")

    def __init__(
        self, first: Work[T], again: Work[T] | None, future: asyncio.Future[T] | concurrent.futures.Future[T]
    ) -> None:
        self.first = first
        self.again = again or first
        self.future = future


class Sessions:
    """At most `size` threads that serve one queue. Each thread and its connection are created on demand.

    Sessions of one store share a `connector`, so that all of them learn of an outage. With `is_for_users`, jobs call
    user functions, which may leave a transaction open for too long. The store's own jobs do that only if this process
    stands still.
    """

    def __init__(
        self,
        address: PostgresAddress,
        name: str,
        size: int,
        *,
        limits: SessionLimits = USUAL,
        connector: Connector | None = None,
        is_for_users: bool = False,
    ) -> None:
        self._address = address
        self._name = name
        self._size = size
        self._limits = limits
        self._is_for_users = is_for_users
        self._connector = connector or Connector(address)
        self._changing = threading.Lock()
        self._queue: deque[_Job[Any]] = deque()
        # A stack: the last busy session comes first. Its connection is warm, and a lone caller needs only one.
        self._idle: list[_Session] = []
        self._sessions: list[_Session] = []
        self._is_open = False

    # For callers

    def start(self) -> None:
        """Accept jobs from now on."""
        self._is_open = True

    def run(self, job: Work[T], *, again: Work[T] | None = None) -> asyncio.Future[T]:
        """Queue a job and return a future on the running loop. A cancelled future skips the job or drops its answer.

        After a lost connection `again` runs instead, if given, because the first attempt may have been applied.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(_Job(job, again, future))
        return future

    def run_blocking(self, job: Work[T], *, again: Work[T] | None = None) -> T:
        """Run a job and wait for its answer. Call it only from a thread that may block and is not one of these."""
        assert all(session.thread is not threading.current_thread() for session in self._sessions)
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._submit(_Job(job, again, future))
        return future.result()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Finish the queued jobs within a time limit and close the connections. Blocks until that is done."""
        with self._changing:
            if not self._is_open:
                return
            self._is_open = False
            idle, self._idle = self._idle, []
        for session in idle:
            session.wake(None)
        until = time.monotonic() + seconds
        for session in self._sessions:
            session.thread.join(max(0.0, until - time.monotonic()))
        self._give_up()

    def abandon(self) -> None:
        """Drop everything in a forked child, which has the memory of these sessions but not their threads.

        It closes no connection, because they belong to the parent. It takes no lock, because a thread of the parent
        may have held it at the fork.
        """
        self._is_open = False
        self._changing = threading.Lock()
        sessions, self._sessions, self._idle = self._sessions, [], []
        self._queue = deque()
        for session in sessions:
            session.abandon()

    def _submit(self, job: _Job[Any]) -> None:
        with self._changing:
            if not self._is_open:
                raise StoreUnavailable(f"the store {self._address.shown} is closed; open it first")
            if self._idle:
                session = self._idle.pop()
            elif len(self._sessions) < self._size:
                session = self._add()
            else:
                self._queue.append(job)
                return
        session.wake(job)

    def _add(self) -> _Session:
        name = f"holdfast-postgres-{self._name}-{len(self._sessions) + 1}"
        session = _Session(name, self._next, self._connector, self._limits, is_for_users=self._is_for_users)
        self._sessions.append(session)
        return session

    def _give_up(self) -> None:
        """Fail the jobs that are still queued, and stop sessions that still wait for the server."""
        with self._changing:
            left = list(self._queue)
            self._queue.clear()
            sessions, self._sessions = self._sessions, []
        closed = StoreUnavailable(f"the store {self._address.shown} was closed before it could answer")
        for job in left:
            _resolve(job.future, error=closed)
        for session in sessions:
            session.give_up()
        for session in sessions:
            session.thread.join(_GIVEN_UP_SECONDS)

    # For sessions, in their threads

    def _next(self, session: _Session) -> bool:
        """Give a session the next job of the queue, or make it idle. Return False if the session should end."""
        with self._changing:
            if self._queue:
                session.wake(self._queue.popleft())
            elif self._is_open:
                self._idle.append(session)
            else:
                return False
        return True


class _Session:
    """One thread, one connection, one job at a time."""

    def __init__(
        self,
        name: str,
        next_job: Callable[[_Session], bool],
        connector: Connector,
        limits: SessionLimits,
        *,
        is_for_users: bool,
    ) -> None:
        self._next_job = next_job
        self._connector = connector
        self._limits = limits
        self._is_for_users = is_for_users
        self._job: _Job[Any] | None = None
        # A bare lock is the fastest way to wake a thread: half the time of an event, a little less than a queue.
        self._has_job = threading.Lock()
        self._has_job.acquire()
        self._connection: Connection | None = None
        self._opened_at = 0.0
        self._is_given_up = False
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()

    # From other threads

    def wake(self, job: _Job[Any] | None) -> None:
        """Give the thread a job. None ends it."""
        self._job = job
        self._has_job.release()

    def give_up(self) -> None:
        """Stop waiting for the server."""
        self._is_given_up = True
        if (connection := self._connection) is not None:
            connection.is_given_up = True

    def abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            disown(connection)

    # In its own thread

    def _serve(self) -> None:
        try:
            is_wanted = True
            while is_wanted and self._has_job.acquire() and (job := self._job) is not None:
                self._job = None
                answer, error = self._outcome(job)
                # Become idle before the caller gets its answer, so that its next job finds this warm connection.
                is_wanted = self._next_job(self)
                _resolve(job.future, answer, error)
                del job, answer, error  # an idle thread must not keep the caller's objects alive
        finally:
            self._disconnect()

    def _outcome(self, job: _Job[T]) -> tuple[T | None, BaseException | None]:
        if job.future.done():  # the caller was cancelled
            return None, None
        try:
            return self._perform(job), None
        except BaseException as error:  # noqa: BLE001 - every error goes to the caller; the thread lives on
            return None, error

    def _perform(self, job: _Job[T]) -> T:
        work = job.first
        conflicts = losses = 0
        while True:
            connection = self._connected()
            began = time.monotonic()
            try:
                answer = work(connection)
            except BaseException as error:  # noqa: BLE001 - after any error the connection has to be tidied
                self._tidy(connection, error)
                if is_conflict(error) and conflicts < CONFLICT_LIMIT:
                    conflicts += 1
                    time.sleep(_pause(conflicts))
                elif self._is_worth_repeating(error, time.monotonic() - began) and losses < LOSS_LIMIT:
                    losses += 1
                    work = job.again
                else:
                    _raise(self._connector.translated(error), error)
            else:
                self._tidy(connection)
                return answer

    def _is_worth_repeating(self, error: BaseException, seconds: float) -> bool:
        if self._is_given_up:
            return False
        if is_overdue(error) and not self._is_for_users:
            return True  # this process stood still in the middle of the transaction, and nothing was written
        # An operation that took too long would take too long again.
        return is_cancelled(error, seconds, self._limits) or (is_lost(error) and not is_timeout(error))

    # The connection

    def _connected(self) -> Connection:
        if self._connection is None:
            if self._is_given_up:
                raise StoreUnavailable(f"the store {self._connector.address.shown} was closed before it could answer")
            self._connection = self._connector.connect(self._limits)
            self._opened_at = time.monotonic()
        return self._connection

    def _tidy(self, connection: Connection, error: BaseException | None = None) -> None:
        """Restore the connection to its state before the job, or close it."""
        if error is not None and is_lost(error) and not is_timeout(error):
            if not self._is_given_up:
                self._connector.lost(error, self._opened_at)
            self._disconnect()
            return
        try:
            match connection.pgconn.transaction_status:
                case TransactionStatus.IDLE:
                    pass
                case TransactionStatus.INTRANS | TransactionStatus.INERROR:
                    connection.rollback()
                case _:  # closed, or in the middle of an answer that no caller needs
                    self._disconnect()
                    return
            if not connection.autocommit:
                connection.autocommit = True
            # A user function may have changed these.
            connection.row_factory = tuple_row
            connection.cursor_factory = psycopg.Cursor
        except psycopg.Error:  # the next job opens a new connection, and gets the error if it persists
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


def _pause(conflicts: int) -> float:
    """Seconds to pause after this number of conflicts in a row; random, so that two jobs do not collide again."""
    return random.uniform(0, min(_CONFLICT_PAUSE_LIMIT_SECONDS, _CONFLICT_PAUSE_SECONDS * 2**conflicts))


def _raise(translated: BaseException, error: BaseException) -> NoReturn:
    if translated is error:
        raise error
    raise translated from error


def _resolve(
    future: asyncio.Future[Any] | concurrent.futures.Future[Any], answer: Any = None, error: BaseException | None = None
) -> None:
    """Deliver an answer to the caller, on the thread where it waits."""
    if isinstance(future, concurrent.futures.Future):
        _settle(future, answer, error)
        return
    with suppress(RuntimeError):  # the loop is closed, so no caller waits
        future.get_loop().call_soon_threadsafe(_settle, future, answer, error)


def _settle(
    future: asyncio.Future[Any] | concurrent.futures.Future[Any], answer: Any, error: BaseException | None
) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is None:
        future.set_result(answer)
    elif isinstance(error, StopIteration):  # a future refuses this class
        future.set_exception(RuntimeError(f"a job raised {error!r}"))
    else:
        future.set_exception(error)
