"""The write-ahead log of a database: copied back in time, and kept allocated.

A commit into a log that must grow also waits for the file system to record the file's new size. Writing into
blocks the file already has takes less than half of that. So the log is filled up with zeros once and written
over and over; SQLite ends reading a log at the first frame that is not valid, which zeros never are.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import apsw

PAGES = 2_000
"""So many pages may gather before they are copied back, and for so many the log is allocated."""

_PAGES_MORE = 1_000
_FRAME_BYTES = 4_096 + 24
_COMMITS_BEFORE_ALLOCATING = 30
_CHUNK = bytes(1024 * 1024)


class Wal:
    """The log of one writer's connection. For the writer's thread only."""

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
        """Whether this process has written often enough for it to pay off, and it has not been done."""
        return self._commits >= _COMMITS_BEFORE_ALLOCATING and not self._is_allocated

    @property
    def is_due(self) -> bool:
        """Whether there is something to do about the log."""
        return self.is_to_allocate or self._pages > self._limit

    def allocate(self, connection: apsw.Connection) -> None:
        """Fill the log up with zeros. To be called by whoever has the turn to write."""
        self._is_allocated = True
        # Under SQLite's own lock, too: nobody, not even a stranger's shell, appends a frame meanwhile.
        connection.execute("begin immediate")
        try:
            with suppress(OSError), self._path.open("ab", buffering=0) as log:  # a full disk is told by the next commit
                missing = PAGES * _FRAME_BYTES - os.fstat(log.fileno()).st_size
                while missing > 0:
                    missing -= log.write(_CHUNK[:missing])
        finally:
            connection.execute("rollback")

    def tidy(self, connection: apsw.Connection) -> None:
        """Copy the log back between two batches, or it would grow for ever. A reader may keep part of it back."""
        if self._pages <= self._limit:
            return
        try:
            pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:  # nothing is lost; what hinders it will meet the next commit too, and be told then
            pages, copied = self._pages, 0
        self._limit = PAGES if copied == pages else pages + _PAGES_MORE
        self._pages = 0
