"""Readers: threads, each with its own connection. Each read is one short transaction.

An open read transaction would keep SQLite from resetting the WAL, so a read fetches everything before it returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.migrations import Migrations
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.connections import open_for_reading
from holdfast.stores.sqlite.errors import needs_reopening
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.jobs import Job, JobOutcome, Round, ask, tell

_THREADS = 2
_QUICK_SECONDS = 0.001
_CLOSE_SECONDS = 1.0

_Answer = TypeVar("_Answer")


class Readers:
    """Runs reads, each on a consistent snapshot of the database."""

    def __init__(self, files: Files, steps: Migrations[str]) -> None:
        self._files = files
        self._steps = steps
        self._jobs: SimpleQueue[Job[apsw.Connection] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._is_stopped = False
        self._nearby = _Connection(files, is_patient=False)  # guarded by `_reading_nearby`
        self._reading_nearby = threading.Lock()
        self._round = Round()
        self._read_seconds = 2 * _QUICK_SECONDS  # moving average; starts as slow until reads prove to be quick

    async def run(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        self._check_running()
        self._start()
        return await ask(self._jobs, operation)

    async def run_small(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        """Run an operation that is so small that handing it to a thread takes longer than the read itself.

        It runs on the caller's event loop, which blocks meanwhile, if two conditions hold: it is the first operation
        in this iteration of the loop, and recent reads were quick. Otherwise a thread runs it.
        """
        self._check_running()
        is_quick = self._read_seconds < _QUICK_SECONDS
        if is_quick and self._round.take() and self._reading_nearby.acquire(blocking=False):
            try:
                return self._read(self._nearby, operation)
            except Exception:  # noqa: BLE001 - a thread repeats the read, and handles the error
                self._nearby.close()
            finally:
                self._reading_nearby.release()
        return await self.run(operation)

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            for _ in self._threads:
                self._jobs.put(None)
            if self._reading_nearby.acquire(timeout=_CLOSE_SECONDS):
                self._nearby.close()
                self._reading_nearby.release()

    def _check_running(self) -> None:
        if self._is_stopped:
            raise StoreUnavailable(f"the store {self._files.database} is closed; open it first")

    def _read(self, connection: _Connection, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        started = time.monotonic()
        try:
            return connection.read(operation)
        finally:
            took = min(time.monotonic() - started, 2 * _QUICK_SECONDS)  # capped: one slow read may be chance
            self._read_seconds += (took - self._read_seconds) / 4

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    def _start(self) -> None:
        """Start the threads with the first read, so that a process that only writes has none."""
        if self._threads:
            return
        with self._starting:
            if not self._threads:
                self._threads = self._started()

    def _started(self) -> list[threading.Thread]:
        names = [f"holdfast-sqlite-reader-{number + 1}" for number in range(_THREADS)]
        threads = [threading.Thread(target=self._serve, name=name, daemon=True) for name in names]
        for thread in threads:
            thread.start()
        return threads

    def _serve(self) -> None:
        connection = _Connection(self._files)
        while (job := self._jobs.get()) is not None:
            if job.future.done():
                continue
            try:
                outcome = JobOutcome(job, self._read(connection, job.operation))
            except Exception as error:  # noqa: BLE001 - every error goes to its caller; the thread goes on
                if needs_reopening(error):
                    connection.close()
                outcome = JobOutcome(job, error=schema.translated(self._files.database, error, self._steps))
            tell([outcome])
        connection.close()


class _Connection:
    """The connection of one thread, opened on first use."""

    def __init__(self, files: Files, *, is_patient: bool = True) -> None:
        self._files = files
        self._is_patient = is_patient
        self._identity = 0
        self._connection: apsw.Connection | None = None

    def read(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        """Run an operation in one read transaction, on a consistent snapshot."""
        connection = self._opened()
        connection.execute("begin")
        try:
            return operation(connection)
        finally:
            if connection.in_transaction:
                connection.execute("rollback")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
            self._connection = None

    def _opened(self) -> apsw.Connection:
        identity = self._files.identity()
        if identity != self._identity:  # the file at the path was replaced since it was opened
            self.close()
            self._identity = identity
        if self._connection is None:
            self._connection = open_for_reading(self._files.database)
            if not self._is_patient:
                self._connection.set_busy_timeout(0)
        return self._connection
