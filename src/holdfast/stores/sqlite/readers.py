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
        self._is_stopped = False

    async def run(self, operation: Callable[[apsw.Connection], _Answer]) -> _Answer:
        if self._is_stopped:
            raise StoreUnavailable(f"the store {self._files.database} is closed; open it first")
        if not self._threads:
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
        names = [f"holdfast-sqlite-reader-{number + 1}" for number in range(_THREADS)]
        self._threads = [threading.Thread(target=self._serve, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        connection: apsw.Connection | None = None
        while (job := self._jobs.get()) is not None:
            if job.future.done():
                continue
            try:
                connection = connection or open_for_reading(self._files.database)
                outcome = Outcome(job, _read(connection, job))
            except Exception as error:  # noqa: BLE001 - an error of any kind is its caller's; the thread lives on
                if connection is not None and needs_reopening(error):
                    connection.close(force=True)
                    connection = None
                outcome = Outcome(job, error=self._translated(error))
            tell([outcome])
        if connection is not None:
            connection.close(force=True)

    def _translated(self, error: Exception) -> Exception:
        translated = unavailable(self._files.database, error)
        if translated is not error:
            translated.__cause__ = error
        return translated


def _read(connection: apsw.Connection, job: Job[apsw.Connection]) -> object:
    connection.execute("begin")
    try:
        return job.operation(connection)
    finally:
        if connection.in_transaction:
            connection.execute("rollback")
