"""The writer: one thread with one connection, which runs the operations of all callers and commits them together.

Operations that arrive during a commit go into the next one (group commit). Callers share the commit but never a
failure: if a batch fails, each operation runs in its own transaction, so only the one at fault fails.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TypeVar

import apsw

from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.hint import Hint
from holdfast.core.ports import Report
from holdfast.stores.migrations import Migrations
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.connections import be_patient, open_for_writing
from holdfast.stores.sqlite.errors import concerns_everybody, needs_reopening
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.hint_watcher import HintWatcher
from holdfast.stores.sqlite.jobs import ANSWER_SECONDS, Job, JobOutcome, Round, ask, ask_blocking, give_up, settle, tell
from holdfast.stores.sqlite.liveness import WorkerLocks
from holdfast.stores.sqlite.routes import Routes
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.stores.sqlite.wal import Wal
from holdfast.stores.sqlite.write_lock import WriteLock

# Inodes of the databases that were open when this process was forked. SQLite tracks its locks in static variables. A
# fork copies these, although the child holds none of the locks. So this set belongs to the process too, not to a store.
_INHERITED: set[int] = set()

_Answer = TypeVar("_Answer")


class _Signal(Enum):
    STOP = "stop"
    LOOK = "look"


class Writer:
    """Runs operations in transactions that they share with operations of other callers."""

    def __init__(
        self, files: Files, clock: Clock, hint_watcher: HintWatcher, locks: WorkerLocks, steps: Migrations[str]
    ) -> None:
        self._files = files
        self._clock = clock
        self._hint_watcher = hint_watcher
        self._locks = locks
        self._steps = steps
        self._jobs: SimpleQueue[Job[Transaction] | _Signal] = SimpleQueue()
        self._write_lock = WriteLock(files.turn)
        self._connection: apsw.Connection | None = None
        self._identity = 0
        self._data_version = -1
        """The version of the data after the last commit here. If it has changed, another process has committed."""
        self._wal = Wal(files.wal)
        self._at_work = threading.Lock()
        self._round = Round()
        self._routes = Routes()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._is_exiting = False

    # For callers, from any thread

    async def start(self, migrating: Report | None = None) -> None:
        """Open the database and start the thread. Raises if the database cannot be opened.

        `migrating` is called with the progress of a migration, which may take any time.
        """
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        limit = loop.call_later(ANSWER_SECONDS, give_up, opened)

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
        return ask(self._jobs, operation)

    def run_small(
        self, operation: Callable[[Transaction], _Answer], *, is_small: Callable[[Transaction], bool] | None = None
    ) -> asyncio.Future[_Answer]:
        """Run an operation that may be so small that handing it to the thread takes longer than the operation.

        It runs on the caller's event loop, which blocks meanwhile, if three conditions hold. The writer is idle. It is
        the first operation in this iteration of the loop. Committing on the loop was quicker recently. Otherwise the
        thread runs it. `is_small` decides inside the transaction, if the size is not known before.
        """
        self._check_running()
        if not self._jobs.empty() or not self._round.take():
            return ask(self._jobs, operation)
        if self._routes.is_here() and self._at_work.acquire(blocking=False):
            try:
                done = self._transact_here(operation if is_small is None else _if_small(operation, is_small))
            finally:
                self._at_work.release()
            if done is not None:
                return done
        answer = ask(self._jobs, operation)
        self._routes.time_thread(answer)
        return answer

    def _transact_here(self, operation: Callable[[Transaction], _Answer]) -> asyncio.Future[_Answer] | None:
        """Commit on this thread. Returns None if that fails for any reason; the writer's thread then tries again."""
        connection = self._connection
        if connection is None or self._files.identity() != self._identity or not self._write_lock.try_acquire():
            return None
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        try:
            connection.set_busy_timeout(0)
            outcomes, transaction, hint = self._commit(connection, [Job(operation, future)])
        except Exception:  # noqa: BLE001 - the thread repeats the operation, and handles the error
            return None
        finally:
            self._write_lock.release()
            be_patient(connection)
        self._routes.answered_here()
        settle(outcomes[0])
        self._spread([], transaction, hint)
        if self._wal.is_due:
            self.look()
        return future

    def run_blocking(self, operation: Callable[[Transaction], _Answer]) -> _Answer:
        """Run an operation ahead of the queue, and block the calling thread until it is committed."""
        self._check_running()
        return ask_blocking(self._jobs, operation)

    def look(self) -> None:
        """Make the thread check soon whether another process has written."""
        self._jobs.put(_Signal.LOOK)

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

    # In the thread

    def _serve(self, opened: asyncio.Future[None], report: Report) -> None:
        opening: Job[Transaction] = Job(lambda _: None, opened)
        try:
            self._write_lock.open()
            self._hint_watcher.open()
            self._connect(may_create=True, report=report)
        except Exception as error:  # noqa: BLE001 - the caller gets every error, and the thread ends
            self._is_stopped = True
            self._close_files()
            tell([JobOutcome(opening, error=self._translated(error))])
            return
        is_wanted = not opened.done()
        tell([JobOutcome(opening)])
        try:
            while is_wanted:
                is_wanted = self._serve_next()
        finally:
            self._is_stopped = True
            self._finish()

    def _serve_next(self) -> bool:
        """Run the queued jobs as one batch, then the work between two batches. Returns False on a stop signal."""
        jobs, signals = self._take()
        with self._at_work:
            if jobs:
                self._run_batch(jobs)
                self._write_lock.pause()
            self._care_for_wal()
            if _Signal.STOP in signals:
                return False
            if self._hint_watcher.is_to_look(is_told=_Signal.LOOK in signals):
                self._look_around()
        return True

    def _take(self) -> tuple[list[Job[Transaction]], list[_Signal]]:
        """Take everything from the queue, lease renewals first. Waits for a job, a signal, or the next look."""
        taken: list[Job[Transaction] | _Signal] = []
        try:
            taken.append(self._jobs.get(timeout=self._hint_watcher.patience()))
            while True:
                taken.append(self._jobs.get_nowait())
        except Empty:
            pass
        jobs = [one for one in taken if isinstance(one, Job) and not one.future.done()]
        jobs.sort(key=lambda job: not job.is_urgent)
        return jobs, [one for one in taken if isinstance(one, _Signal)]

    def _run_batch(self, jobs: list[Job[Transaction]]) -> None:
        try:
            outcomes, transaction, hint = self._transact(jobs)
        except Exception as error:  # noqa: BLE001 - every error goes to its caller; the thread goes on
            if needs_reopening(error):
                self._disconnect()
            if len(jobs) == 1 or concerns_everybody(error):
                tell([JobOutcome(job, error=self._translated(error)) for job in jobs])
                return
            for job in jobs:  # one transaction per job, so that only the job at fault fails
                self._run_batch([job])
            return
        self._spread(outcomes, transaction, hint)

    def _spread(self, outcomes: list[JobOutcome], transaction: Transaction, hint: Hint | None) -> None:
        """Deliver the outcomes of a commit to the callers, and its hint to the listeners."""
        for action in transaction.after_commit:
            with suppress(OSError):  # actions only touch files beside the database; the commit stands
                action()
        if outcomes or hint is not None:
            tell(outcomes, hint, self._hint_watcher.listeners)

    def _transact(self, jobs: list[Job[Transaction]]) -> tuple[list[JobOutcome], Transaction, Hint | None]:
        connection = self._connected()
        self._write_lock.acquire()
        try:
            return self._commit(connection, jobs)
        finally:
            self._write_lock.release()

    def _commit(
        self, connection: apsw.Connection, jobs: list[Job[Transaction]]
    ) -> tuple[list[JobOutcome], Transaction, Hint | None]:
        """Run jobs in one transaction. A refusal is an ordinary outcome; any other error undoes the whole batch.

        The hint for other processes is posted here, while this process still holds the write lock. The caller
        delivers the hint to the listeners of this process.
        """
        started = time.monotonic()
        try:
            connection.execute("begin immediate")
            if connection.data_version() != self._data_version:
                self.check_number(connection)
            transaction = Transaction(connection, self._clock)
            outcomes = [_outcome(job, transaction) for job in jobs]
            transaction.flush()
            connection.execute("commit")
            self._data_version = connection.data_version()
        except BaseException:
            _roll_back(connection)
            raise
        finally:
            self._routes.committed(time.monotonic() - started)
        hint = transaction.news.hint()
        if hint is not None:
            self._hint_watcher.post(hint)
        return outcomes, transaction, hint

    # The connection

    def _connected(self) -> apsw.Connection:
        if self._connection is not None and self._files.identity() != self._identity:
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
        if self._files.identity() in _INHERITED:
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
        self._hint_watcher.rebase(connection.execute("pragma data_version").get)
        self._identity = self._files.identity()
        self._connection = connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
            self._connection = None

    def _care_for_wal(self) -> None:
        if self._connection is None:
            return
        self._wal.tidy(self._connection)
        if self._wal.is_to_allocate:
            self._write_lock.acquire()
            try:
                with suppress(apsw.Error):  # allocation only makes commits faster
                    self._wal.allocate(self._connection)
            finally:
                self._write_lock.release()

    def _look_around(self) -> None:
        self._hint_watcher.looked()
        if self._connection is None:
            return
        try:
            version = self._connection.execute("pragma data_version").get
        except apsw.Error:  # the next operation meets the same error and reports it to its caller
            return
        if self._hint_watcher.have_written(version):
            tell([], Hint(is_elsewhere=True), self._hint_watcher.listeners)

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
        left = self._take_rest()
        tell([JobOutcome(job, error=closed) for job in left])

    def _close_files(self) -> None:
        self._disconnect()
        self._write_lock.close()
        self._hint_watcher.close()

    def _take_rest(self) -> list[Job[Transaction]]:
        rest: list[Job[Transaction]] = []
        while not self._jobs.empty():
            one = self._jobs.get_nowait()
            if isinstance(one, Job):
                rest.append(one)
        return rest

    def _translated(self, error: Exception) -> Exception:
        return schema.translated(self._files.database, error, self._steps)


def _roll_back(connection: apsw.Connection) -> None:
    """Roll back a failed transaction. After some errors, such as a full disk, SQLite has already done it."""
    with suppress(apsw.Error):  # the caller reports the original error
        if connection.in_transaction:
            connection.execute("rollback")


class _TooLarge(Exception):
    """The operation is too large for the event loop; the thread runs it instead."""


def _if_small(
    operation: Callable[[Transaction], _Answer], is_small: Callable[[Transaction], bool]
) -> Callable[[Transaction], _Answer]:
    def attempt(transaction: Transaction) -> _Answer:
        if not is_small(transaction):
            raise _TooLarge
        return operation(transaction)

    return attempt


def _outcome(job: Job[Transaction], transaction: Transaction) -> JobOutcome:
    try:
        return JobOutcome(job, job.operation(transaction))
    except HoldfastError as refusal:  # raised before anything was written
        return JobOutcome(job, error=refusal)
