"""A disk that loses power: it records writes and syncs of SQLite, and shows the files as a power cut would leave them.

SQLite writes through a VFS. This one passes everything on to the default one and keeps a journal. The power may fail at
any moment of the journal. Data written but not synced by then is either lost or has reached the disk anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import apsw
import msgspec

_SYNC_KINDS = apsw.SQLITE_SYNC_NORMAL | apsw.SQLITE_SYNC_FULL


class Write(msgspec.Struct, frozen=True):
    """Bytes are written to a file, not necessarily to the disk."""

    path: Path
    offset: int
    data: bytes

    def __str__(self) -> str:
        return f"{len(self.data)} bytes written to {self.path.name} at {self.offset}"


class Truncation(msgspec.Struct, frozen=True):
    """A file is truncated."""

    path: Path
    size: int


class Deletion(msgspec.Struct, frozen=True):
    """A file is removed."""

    path: Path


class Sync(msgspec.Struct, frozen=True):
    """All data written to a file so far reaches the disk. `is_full`: also past the cache of the drive, on macOS."""

    path: Path
    is_full: bool


class Promise(msgspec.Struct, frozen=True):
    """A caller learns that data is safe. `question`: a statement that returns 1 as long as the data exists."""

    question: str
    values: tuple[str, ...] = ()


Moment = Write | Truncation | Deletion | Sync | Promise
Images = dict[Path, bytes]


class Cut(msgspec.Struct, frozen=True):
    """The power fails after this moment: the promises made by then, and the remaining files."""

    moment: Moment
    promised: list[Promise]
    images: Images


class Disk(apsw.VFS):
    """The journal of SQLite's changes to the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.journal: list[Moment] = []
        self.base = apsw.vfs_names()[0]
        self._folder = folder
        super().__init__("power-cut", base=self.base, makedefault=True)

    @contextmanager
    def in_use(self) -> Iterator[Self]:
        """Let SQLite use this disk inside the `with` block."""
        try:
            yield self
        finally:
            self.unregister()

    def promise(self, question: str, *values: str) -> None:
        """Record that a caller was promised that data is safe."""
        self.journal.append(Promise(question, values))

    def note(self, moment: Write | Truncation | Deletion | Sync) -> None:
        """Record a change, unless it concerns a file in another folder."""
        if moment.path.parent == self._folder:
            self.journal.append(moment)

    def cuts(self) -> Iterator[Cut]:
        """Yield the files after each moment: with synced data only or with all written data, if changed."""
        promised: list[Promise] = []
        written: defaultdict[Path, bytearray] = defaultdict(bytearray)
        synced: Images = {}
        for moment in self.journal:
            if isinstance(moment, Promise):
                promised.append(moment)
            elif isinstance(moment, Sync):
                synced[moment.path] = bytes(written[moment.path])
            elif isinstance(moment, Deletion):
                del written[moment.path]
                synced.pop(moment.path, None)
            else:
                _change(written[moment.path], moment)
            if not isinstance(moment, Write | Truncation):
                yield Cut(moment, list(promised), dict(synced))
            if not isinstance(moment, Sync):
                yield Cut(moment, list(promised), {path: bytes(content) for path, content in written.items()})

    # Called by SQLite

    def xOpen(self, name: Any, flags: list[int]) -> _File:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self.note(Deletion(Path(filename)))


class _File(apsw.VFSFile):
    """A file of SQLite whose changes are recorded."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "")
        super().__init__(disk.base, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._disk.note(Write(self._path, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._disk.note(Truncation(self._path, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._disk.note(Sync(self._path, is_full=flags & _SYNC_KINDS == apsw.SQLITE_SYNC_FULL))


def _change(content: bytearray, moment: Write | Truncation) -> None:
    if isinstance(moment, Truncation):
        del content[moment.size :]
        return
    content.extend(bytes(max(0, moment.offset - len(content))))
    content[moment.offset : moment.offset + len(moment.data)] = moment.data
