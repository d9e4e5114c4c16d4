"""The writer: one thread with one connection, which runs the operations of all callers and commits them together.

Operations that arrive during a commit go into the next one (group commit). Callers share the commit but never a
failure: if a batch fails, each operation runs in its own transaction, so only the one at fault fails.

A caller waits on its own event loop, or blocks its own thread. Answers of one batch go to each loop in one call,
because waking a loop costs more than most operations do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import apsw

from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError, InvalidRequest, StoreUnavailable
from holdfast.core.news import Hint
from holdfast.core.ports import Report
from holdfast.stores.migrations import Migrations
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.connections import concerns_all_operations, needs_reopening, open_for_writing
from holdfast.stores.sqlite.files import Files, open_beside
from holdfast.stores.sqlite.hints import FileHints, Listener
from holdfast.stores.sqlite.liveness import WorkerLocks
from holdfast.stores.sqlite.transaction import Transaction

ANSWER_SECONDS = 60.0

WAL_PAGES = 2_000
"""Number of pages in the write-ahead log before they are copied back, and number of pages allocated for it."""

_WAL_PAGES_MORE = 1_000
_FRAME_BYTES = 4_096 + 24
_COMMITS_BEFORE_ALLOCATING = 30
_CHUNK = bytes(1024 * 1024)

_PAUSE_SECONDS = 0.0003
_CONTENTION_SECONDS = 1.0

# Inodes of the databases that were open when this process was forked. SQLite tracks its locks in static variables. A
# fork copies these, although the child holds none of the locks. So this set belongs to the process too, not to a store.
_INHERITED: set[int] = set()

_Unit = TypeVar("_Unit")
_Answer = TypeVar("_Answer")


class _Signal(Enum):
    STOP = "stop"
    POLL = "poll"


class Writer:
    """Runs operations in transactions that they share with operations of other callers."""

    def __init__(
        self, files: Files, clock: Clock, hints: FileHints, locks: WorkerLocks, steps: Migrations[str]
    ) -> None:
        self._files = files
        self._name = str(files.database)
        self._clock = clock
        self._hints = hints
        self._locks = locks
        self._steps = steps
        self._jobs: SimpleQueue[Job[Transaction] | _Signal] = SimpleQueue()
        self._write_lock = WriteLock(files.turn)
        self._connection: apsw.Connection | None = None
        self._identity = 0
        self._data_version = -1
        """The version of the data after the last commit here. If it has changed, another process has committed."""
        self._wal = Wal(files.wal)
        self._thread: threading.Thread | None = None
        self._wait_seconds: float | None = 0.0
        self._is_stopped = False
        self._is_exiting = False

    # For callers, from any thread

    async def start(self, migrating: Report | None = None) -> None:
        """Open the database and start the thread. Raises if the database cannot be opened.

        `migrating` is called with the progress of a migration, which may take any time.
        """
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        limit = loop.call_later(ANSWER_SECONDS, time_out, opened)

        def report(line: str) -> None:
            loop.call_soon_threadsafe(limit.cancel)
            if migrating is not None:
                migrating(line)

        self._thread = threading.Thread(
            target=self._serve, args=(opened, report), name="holdfast-sqlite-writer", daemon=True
        )
        self._thread.start()
        try:
            await opened
        except BaseException:  # opening failed, or the caller was cancelled
            self.stop()
            raise
        finally:
            limit.cancel()

    def run(self, operation: Callable[[Transaction], _Answer]) -> asyncio.Future[_Answer]:
        """Run an operation in the next transaction. The answer comes after the commit."""
        self._check_running()
        return submit(self._jobs, operation)

    def run_blocking(self, operation: Callable[[Transaction], _Answer]) -> _Answer:
        """Run an operation ahead of the queue, and block the calling thread until it is committed."""
        self._check_running()
        return submit_blocking(self._jobs, operation)

    def poll(self) -> None:
        """Make the thread check soon whether another process has written."""
        self._jobs.put(_Signal.POLL)

    def stop(self, *, is_exiting: bool = False) -> None:
        """Let the thread end after the operations that are queued now.

        `is_exiting`: the process exits without closing the store. Then the lock files of its workers stay, so that
        other processes find the workers dead.
        """
        if not self._is_stopped:
            self._is_stopped = True
            self._is_exiting = is_exiting
            self._jobs.put(_Signal.STOP)

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def abandon(self) -> None:
        """Close the inherited locks in a forked child. They belong to the parent and must not outlive it."""
        if self._connection is not None:
            _INHERITED.add(self._identity)
        self._write_lock.close()
        self._locks.abandon()

    def _check_running(self) -> None:
        if self._is_stopped:
            raise StoreUnavailable(f"the store {self._files.database} is closed; open it first")
        check_not_writing(self._files.database)

    # In the thread

    def _serve(self, opened: asyncio.Future[None], report: Report) -> None:
        opening: Job[Transaction] = Job(lambda _: None, opened)
        try:
            self._write_lock.open()
            self._hints.open()
            self._connect(may_create=True, report=report)
        except Exception as error:  # noqa: BLE001 - the caller gets every error, and the thread ends
            self._is_stopped = True
            self._close_files()
            opening.error = self._translate(error)
            deliver([opening])
            return
        is_wanted = not opened.done()
        deliver([opening])
        try:
            while is_wanted:
                is_wanted = self._serve_next()
        finally:
            self._is_stopped = True
            self._finish()

    def _serve_next(self) -> bool:
        """Run the queued jobs as one batch, then the work between two batches. Returns False on a stop signal."""
        jobs, signals = self._next_batch()
        if jobs:
            self._run_batch(jobs)
            self._write_lock.pause()
        if self._wal.is_due:
            self._care_for_wal()
        if _Signal.STOP in signals:
            return False
        self._wait_seconds = self._hints.seconds_to_poll(is_requested=_Signal.POLL in signals)
        if self._wait_seconds == 0.0:
            self._poll()
            self._wait_seconds = self._hints.seconds_to_poll()
        return True

    def _next_batch(self) -> tuple[list[Job[Transaction]], list[_Signal]]:
        """Take everything from the queue, lease renewals first. Waits for a job, a signal, or the next poll."""
        jobs: list[Job[Transaction]] = []
        signals: list[_Signal] = []
        with suppress(Empty):
            one = self._jobs.get(timeout=self._wait_seconds)
            while True:
                if isinstance(one, _Signal):
                    signals.append(one)
                elif not one.future.done():
                    jobs.append(one)
                if self._jobs.empty():
                    break
                one = self._jobs.get_nowait()
        jobs.sort(key=lambda job: not job.is_urgent)
        return jobs, signals

    def _run_batch(self, jobs: list[Job[Transaction]]) -> None:
        try:
            transaction, hint = self._transact(jobs)
        except Exception as error:  # noqa: BLE001 - every error goes to its caller; the thread goes on
            if needs_reopening(error):
                self._disconnect()
            if len(jobs) == 1 or concerns_all_operations(error):
                for job in jobs:
                    job.error = self._translate(error)
                deliver(jobs)
                return
            for job in jobs:  # one transaction per job, so that only the job at fault fails
                self._run_batch([job])
            return
        for action in transaction.after_commit:
            with suppress(OSError):  # actions only touch files beside the database; the commit stands
                action()
        deliver(jobs, hint, self._hints.listeners)

    def _transact(self, jobs: list[Job[Transaction]]) -> tuple[Transaction, Hint | None]:
        """Run jobs in one transaction. A refusal is an ordinary outcome; any other error undoes the whole batch.

        Posts the hint for other processes, and returns it for the listeners of this one.
        """
        connection = self._live_connection()
        self._write_lock.acquire()
        try:
            connection.execute("begin immediate")
            if connection.data_version() != self._data_version:
                self.check_number(connection)
            transaction = Transaction(connection, self._clock)
            for job in jobs:
                job.run(transaction)
            transaction.flush()
            connection.execute("commit")
            self._data_version = connection.data_version()
        except BaseException:
            _roll_back(connection)
            raise
        else:
            hint = transaction.news.hint()
            if hint is not None:  # while this process holds the write lock: the numbers of the notes rely on it
                self._hints.post(hint)
            return transaction, hint
        finally:
            self._write_lock.release()

    # The connection

    def _live_connection(self) -> apsw.Connection:
        if self._connection is not None and inode_of(self._name) != self._identity:
            self._disconnect()
        if self._connection is None:
            self._connect(may_create=False)
        assert self._connection is not None
        return self._connection

    def check_number(self, connection: apsw.Connection) -> None:
        """Refuse to write if another process has migrated the database so that this code does not know it."""
        schema.check_number(connection, self._files.database, self._steps)

    def _connect(self, *, may_create: bool, report: Report = lambda _: None) -> None:
        path = self._files.database
        if inode_of(self._name) in _INHERITED:
            raise StoreUnavailable(
                f"the database {path} was open in the process that this one was forked from, and SQLite does not "
                "survive a fork; open it after the fork, close it before, or start the process with spawn"
            )
        if not may_create and not path.exists():
            raise StoreUnavailable(f"the database {path} has disappeared; restore it, or restart with a new one")
        self._write_lock.acquire()
        try:
            connection = open_for_writing(path, may_create=may_create)
            try:
                schema.prepare(connection, path, self._steps, report)
            except BaseException:
                connection.close()
                raise
        finally:
            self._write_lock.release()
        self._data_version = -1  # unknown
        self._wal.watch(connection)
        self._hints.start_from(connection)
        self._identity = inode_of(self._name)
        self._connection = connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
            self._connection = None

    def _care_for_wal(self) -> None:
        if self._connection is None:
            return
        self._wal.copy_back(self._connection)
        if self._wal.is_to_allocate:
            self._write_lock.acquire()
            try:
                with suppress(apsw.Error):  # allocation only makes commits faster
                    self._wal.allocate(self._connection)
            finally:
                self._write_lock.release()

    def _poll(self) -> None:
        with suppress(apsw.Error):  # the next operation meets the same error and reports it to its caller
            if self._connection is not None and self._hints.poll(self._connection):
                deliver([], Hint(is_elsewhere=True), self._hints.listeners)

    def _finish(self) -> None:
        """Truncate the WAL if no other process uses the database, close all files, and fail the jobs left over."""
        if self._connection is not None:
            with suppress(apsw.Error):  # another process reads or writes; the data is safe in the WAL
                self._connection.set_busy_timeout(0)
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if not self._is_exiting:
            self._locks.release_all()
        self._close_files()
        closed = StoreUnavailable(f"the store {self._files.database} was closed before it could answer")
        while not self._jobs.empty():
            if isinstance(job := self._jobs.get_nowait(), Job):
                job.error = closed
                deliver([job])

    def _close_files(self) -> None:
        self._disconnect()
        self._write_lock.close()
        self._hints.close()

    def _translate(self, error: Exception) -> Exception:
        return schema.translate(self._files.database, error, self._steps)


def inode_of(name: str) -> int:
    """Return the inode of the file now at a path, or 0. Writes to a replaced file would be lost."""
    try:
        return os.stat(name).st_ino  # noqa: PTH116 - called before each transaction; Path takes twice as long
    except OSError:
        return 0


def _roll_back(connection: apsw.Connection) -> None:
    """Roll back a failed transaction. After some errors, such as a full disk, SQLite has already done it."""
    with suppress(apsw.Error):  # the caller reports the original error
        if connection.in_transaction:
            connection.execute("rollback")


# Jobs and their answers


class Job(Generic[_Unit]):
    """An operation, the future of its caller, and its outcome. A thread skips a job whose caller has given up."""

    __slots__ = ("answer", "error", "future", "is_urgent", "limit", "operation")

    def __init__(
        self,
        operation: Callable[[_Unit], Any],
        future: asyncio.Future[Any] | concurrent.futures.Future[Any],
        *,
        is_urgent: bool = False,
        limit: asyncio.TimerHandle | None = None,
    ) -> None:
        self.operation = operation
        self.future = future
        self.is_urgent = is_urgent
        self.limit = limit
        self.answer: Any = None
        self.error: Exception | None = None

    def run(self, unit: _Unit) -> None:
        try:
            self.error = None  # of a batch that was undone
            self.answer = self.operation(unit)
        except HoldfastError as refusal:  # raised before anything was written
            self.error = refusal

    def settle(self) -> None:
        """Give the caller its answer. An asyncio future must be settled on the thread of its loop."""
        if self.limit is not None:
            self.limit.cancel()
        if self.future.done():  # its caller was cancelled or has given up
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


def submit(jobs: SimpleQueue[Any], operation: Callable[[_Unit], _Answer]) -> asyncio.Future[_Answer]:
    """Queue an operation. Its future gets an answer, or an error after `ANSWER_SECONDS`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Answer] = loop.create_future()
    jobs.put(Job(operation, future, limit=loop.call_later(ANSWER_SECONDS, time_out, future)))
    return future


def submit_blocking(jobs: SimpleQueue[Any], operation: Callable[[_Unit], _Answer]) -> _Answer:
    """Queue an operation ahead of those of `submit`, and block this thread until it is answered."""
    future: concurrent.futures.Future[_Answer] = concurrent.futures.Future()
    jobs.put(Job(operation, future, is_urgent=True))
    try:
        return future.result(ANSWER_SECONDS)
    except concurrent.futures.TimeoutError:
        future.cancel()
        raise _unanswered() from None


def deliver(jobs: Iterable[Job[Any]], hint: Hint | None = None, listeners: Iterable[Listener] = ()) -> None:
    """Give callers their outcomes, and listeners a hint, in one call per event loop. For threads without a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, tuple[list[Job[Any]], list[Callable[[Hint], None]]]] = {}
    for job in jobs:
        if isinstance(job.future, asyncio.Future):
            by_loop.setdefault(job.future.get_loop(), ([], []))[0].append(job)
        else:
            job.settle()
    if hint is not None:
        for loop, listener in listeners:
            by_loop.setdefault(loop, ([], []))[1].append(listener)
    for loop, (settled, hinted) in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and its callers are gone
            loop.call_soon_threadsafe(_receive, loop, settled, hint, hinted)


def _receive(
    loop: asyncio.AbstractEventLoop,
    jobs: list[Job[Any]],
    hint: Hint | None,
    listeners: list[Callable[[Hint], None]],
) -> None:
    for job in jobs:
        job.settle()
    if hint is not None:
        for listener in listeners:
            loop.call_soon(listener, hint)  # separately, so that a listener that raises does not stop the next


def time_out(future: asyncio.Future[Any]) -> None:
    """Fail a future that has waited for `ANSWER_SECONDS`."""
    if not future.done():
        future.set_exception(_unanswered())


def _unanswered() -> StoreUnavailable:
    return StoreUnavailable(
        f"the database did not answer within {ANSWER_SECONDS:g} s; the operation may or may not have happened; "
        "you can repeat it"
    )


# The lock and the log


# The file whose write lock this task or thread holds, so that it never waits for itself.
_WRITING: ContextVar[list[Path]] = ContextVar("holdfast_writing")


@contextmanager
def writing_here(path: Path) -> Iterator[None]:
    mine = [path]
    token = _WRITING.set(mine)
    try:
        yield
    finally:
        mine.clear()  # tasks started in the block have a copy of the variable, which refers to the same list
        _WRITING.reset(token)


def check_not_writing(path: Path) -> None:
    """Raise if the caller itself holds the write lock, because waiting for it would never end."""
    if path in _WRITING.get([]):
        raise InvalidRequest(
            f"inside `with hf.connection()` no other connection can write to {path}, not even holdfast's: leave the "
            "block first, or use hf.start_in, hf.send_in or hf.emit_in(connection, …)"
        )


class WriteLock:
    """The right to begin a write transaction, held by one process at a time. For one thread only.

    It is a lock on a file beside the database. SQLite's own busy waiting starves whole processes for seconds. With this
    lock, and a short pause after a commit while other processes contend, no process waited longer than 0.05 s.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._contended_at = -_CONTENTION_SECONDS

    def open(self) -> None:
        if self._file < 0:
            self._file = open_beside(self._path)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def acquire(self) -> None:
        """Wait for the lock. There is no timeout here: the caller of an operation has one."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._contended_at = time.monotonic()
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def pause(self) -> None:
        """Leave other processes time to take the lock, if there was contention in the last second."""
        if time.monotonic() - self._contended_at < _CONTENTION_SECONDS:
            time.sleep(_PAUSE_SECONDS)


class Wal:
    """The write-ahead log of the writer's connection: copied back regularly, with its blocks allocated.

    A commit into a log that must grow also waits for the file system to record the new file size. Writing into blocks
    that the file already has takes less than half of that time. So the log is filled with zeros once and then
    overwritten. SQLite stops reading a log at the first invalid frame, and a frame of zeros is never valid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pages = 0
        self._limit = WAL_PAGES
        self._commits = 0
        self._is_allocated = False
        self.is_due = False
        """True if the log is to be copied back or allocated."""

    def watch(self, connection: apsw.Connection) -> None:
        """Count the pages that each commit leaves in the log."""
        connection.set_wal_hook(self._count)

    def _count(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        self._commits += 1
        self.is_due = pages > self._limit or self.is_to_allocate
        return apsw.SQLITE_OK

    @property
    def is_to_allocate(self) -> bool:
        """True if the log is not allocated yet, and this process has written often enough for that to pay off."""
        return not self._is_allocated and self._commits >= _COMMITS_BEFORE_ALLOCATING

    def allocate(self, connection: apsw.Connection) -> None:
        """Fill the log with zeros. The caller must hold the write lock."""
        self._is_allocated = True
        # Under SQLite's own lock too, so that no other program, such as a shell, appends a frame meanwhile.
        connection.execute("begin immediate")
        try:
            with suppress(OSError), self._path.open("ab", buffering=0) as log:  # the next commit reports a full disk
                missing = WAL_PAGES * _FRAME_BYTES - os.fstat(log.fileno()).st_size
                while missing > 0:
                    missing -= log.write(_CHUNK[:missing])
        finally:
            connection.execute("rollback")

    def copy_back(self, connection: apsw.Connection) -> None:
        """Copy the log back between two batches, so that it does not grow forever. A reader can delay part of it."""
        self.is_due = False
        if self._pages <= self._limit:
            return
        try:
            pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:  # nothing is lost, and the next commit meets the same error and reports it
            pages, copied = self._pages, 0
        self._limit = WAL_PAGES if copied == pages else pages + _WAL_PAGES_MORE
        self._pages = 0
