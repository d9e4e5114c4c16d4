"""The write-ahead log (WAL) of a database: copy it back regularly, and keep its blocks allocated.

A commit into a log that must grow also waits for the file system to record the new file size. Writing into blocks that
the file already has takes less than half of that time. So the log is filled with zeros once and then overwritten.
SQLite stops reading a log at the first invalid frame, and a frame of zeros is never valid.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import apsw

PAGES = 2_000
"""Number of pages in the log before they are copied back, and number of pages allocated for it."""

_PAGES_MORE = 1_000
_FRAME_BYTES = 4_096 + 24
_COMMITS_BEFORE_ALLOCATING = 30
_CHUNK = bytes(1024 * 1024)


class Wal:
    """The write-ahead log of the writer's connection. Not thread-safe: only the writer uses it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pages = 0
        self._limit = PAGES
        self._commits = 0
        self._is_allocated = False

    def watch(self, connection: apsw.Connection) -> None:
        """Count the pages that each commit leaves in the log."""
        connection.set_wal_hook(self._count)

    def _count(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        self._commits += 1
        return apsw.SQLITE_OK

    @property
    def is_to_allocate(self) -> bool:
        """True if the log is not allocated yet, and this process has written often enough for that to pay off."""
        return self._commits >= _COMMITS_BEFORE_ALLOCATING and not self._is_allocated

    @property
    def is_due(self) -> bool:
        """True if the log needs to be allocated or copied back."""
        return self.is_to_allocate or self._pages > self._limit

    def allocate(self, connection: apsw.Connection) -> None:
        """Fill the log with zeros. The caller must hold the write lock."""
        self._is_allocated = True
        # Under SQLite's own lock too, so that no other program, such as a shell, appends a frame meanwhile.
        connection.execute("begin immediate")
        try:
            with suppress(OSError), self._path.open("ab", buffering=0) as log:  # the next commit reports a full disk
                missing = PAGES * _FRAME_BYTES - os.fstat(log.fileno()).st_size
                while missing > 0:
                    missing -= log.write(_CHUNK[:missing])
        finally:
            connection.execute("rollback")

    def tidy(self, connection: apsw.Connection) -> None:
        """Copy the log back between two batches, so that it does not grow forever. A reader can delay part of it."""
        if self._pages <= self._limit:
            return
        try:
            pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:  # nothing is lost, and the next commit meets the same error and reports it
            pages, copied = self._pages, 0
        self._limit = PAGES if copied == pages else pages + _PAGES_MORE
        self._pages = 0
