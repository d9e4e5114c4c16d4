"""Readers: threads with connections of their own, each read in a transaction that ends at once.

An open read transaction would keep the WAL from being reset, so nothing is handed out before all is fetched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.sqlite.connections import open_for_reading
from holdfast.stores.sqlite.errors import needs_reopening, unavailable
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.jobs import Job, JobOutcome, Round, ask, tell

_THREADS = 2
_QUICK_SECONDS = 0.001
_CLOSE_SECONDS = 1.0

_Answer = TypeVar("_Answer")


class Readers:
    """Run reading operations, each with a connection that sees one state of the database."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._jobs: SimpleQueue[Job[apsw.Connection] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._is_stopped = False
        self._nearby = _Connection(files, is_patient=False)  # of whoever has the lock
        self._reading_nearby = threading.Lock()
        self._round = Round()
        self._read_seconds = 2 * _QUICK_SECONDS  # of late; not known to be quick before it was seen

    async def run(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        self._check_running()
        self._start()
        return await ask(self._jobs, operation)

    async def run_small(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        """Likewise, for an operation so small that handing it to a thread and back takes longer than doing it.

        It is done here and now if it is the first one in this round of the loop, and reads have been quick of late:
        the caller's event loop stands still meanwhile.
        """
        self._check_running()
        is_quick = self._read_seconds < _QUICK_SECONDS
        if is_quick and self._round.take() and self._reading_nearby.acquire(blocking=False):
            try:
                return self._read(self._nearby, operation)
            except Exception:  # noqa: BLE001 - a thread meets it again, and knows what to do
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
            took = min(time.monotonic() - started, 2 * _QUICK_SECONDS)  # one that took longer may be mere chance
            self._read_seconds += (took - self._read_seconds) / 4

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    def _start(self) -> None:
        """Start the threads with the first read: a process that only writes has none."""
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
            except Exception as error:  # noqa: BLE001 - an error of any kind is its caller's; the thread lives on
                if needs_reopening(error):
                    connection.close()
                outcome = JobOutcome(job, error=self._translated(error))
            tell([outcome])
        connection.close()

    def _translated(self, error: Exception) -> Exception:
        translated = unavailable(self._files.database, error)
        if translated is not error:
            translated.__cause__ = error
        return translated


class _Connection:
    """The connection of one thread, opened when it is first needed."""

    def __init__(self, files: Files, *, is_patient: bool = True) -> None:
        self._files = files
        self._is_patient = is_patient
        self._identity = 0
        self._connection: apsw.Connection | None = None

    def read(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        """Do something in one transaction, which sees one state of the database."""
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
        if identity != self._identity:  # another file stands at the path than the one that was opened
            self.close()
            self._identity = identity
        if self._connection is None:
            self._connection = open_for_reading(self._files.database)
            if not self._is_patient:
                self._connection.set_busy_timeout(0)
        return self._connection
