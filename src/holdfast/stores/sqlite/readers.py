"""Readers: threads, each with its own connection. Each read is one short transaction.

An open read transaction would keep SQLite from resetting the WAL, so a read fetches everything before it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.migrations import Migrations
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.connections import needs_reopening, open_for_reading
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.writer import Job, deliver, inode_of, submit

_THREADS = 2

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

    async def run(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        if self._is_stopped:
            raise StoreUnavailable(f"the store {self._files.database} is closed; open it first")
        self._start()
        return await submit(self._jobs, operation)

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            for _ in self._threads:
                self._jobs.put(None)

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    def _start(self) -> None:
        """Start the threads with the first read, so that a process that only writes has none."""
        if self._threads:
            return
        with self._starting:
            if not self._threads:
                names = [f"holdfast-sqlite-reader-{number + 1}" for number in range(_THREADS)]
                threads = [threading.Thread(target=self._serve, name=name, daemon=True) for name in names]
                for thread in threads:
                    thread.start()
                self._threads = threads

    def _serve(self) -> None:
        connection = _Connection(self._files)
        while (job := self._jobs.get()) is not None:
            if job.future.done():
                continue
            try:
                connection.read(job.run)
            except Exception as error:  # noqa: BLE001 - every error goes to its caller; the thread goes on
                if needs_reopening(error):
                    connection.close()
                job.error = schema.translate(self._files.database, error, self._steps)
            deliver([job])
        connection.close()


class _Connection:
    """The connection of one thread, opened on first use."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._name = str(files.database)
        self._identity = 0
        self._connection: apsw.Connection | None = None

    def read(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        """Run an operation in one read transaction, on a consistent snapshot."""
        connection = self._open()
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

    def _open(self) -> apsw.Connection:
        identity = inode_of(self._name)
        if identity != self._identity:  # the file at the path was replaced since it was opened
            self.close()
            self._identity = identity
        if self._connection is None:
            self._connection = open_for_reading(self._files.database)
        return self._connection
