"""Readers: threads with connections of their own, each read in a transaction that ends at once.

An open read transaction would keep the WAL from being reset, so nothing is handed out before all is fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.sqlite.connections import open_for_reading
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.jobs import Job, Outcome, ask, tell
from holdfast.stores.sqlite.trouble import needs_reopening, unavailable

_THREADS = 2

_Answer = TypeVar("_Answer")


class Readers:
    """Run reading operations, each with a connection that sees one state of the database."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._jobs: SimpleQueue[Job[apsw.Connection] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._is_stopped = False

    async def run(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        if self._is_stopped:
            raise StoreUnavailable(f"the store {self._files.database} is closed; open it first")
        self._start()
        return await ask(self._jobs, operation)

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            for _ in self._threads:
                self._jobs.put(None)

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
                outcome = Outcome(job, connection.read(job))
            except Exception as error:  # noqa: BLE001 - an error of any kind is its caller's; the thread lives on
                if needs_reopening(error):
                    connection.close()
                outcome = Outcome(job, error=self._translated(error))
            tell([outcome])
        connection.close()

    def _translated(self, error: Exception) -> Exception:
        translated = unavailable(self._files.database, error)
        if translated is not error:
            translated.__cause__ = error
        return translated


class _Connection:
    """The connection of one thread, opened when it is first needed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._identity = 0
        self._connection: apsw.Connection | None = None

    def read(self, job: Job[apsw.Connection]) -> object:
        """Do a job in one transaction, which sees one state of the database."""
        connection = self._opened()
        connection.execute("begin")
        try:
            return job.operation(connection)
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
        return self._connection
