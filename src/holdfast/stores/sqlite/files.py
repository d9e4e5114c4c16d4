"""Files: the database and the directory beside it, which holds what its processes tell each other."""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast.core.errors import InvalidRequest, StoreUnavailable

FILE_MODE = 0o644

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
"""How the system writes what would end a word in there, and nothing else: a space is `\\040`."""

# WAL needs shared memory and locks that these do not give across machines.
_NETWORK_TYPES = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3"}
    | {"smbfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"}
)


_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,40}")


def in_namespace(database: str, namespace: str) -> str:
    """The file of a namespace: beside that of the whole, as SQLite locks files as a whole."""
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidRequest(f"namespace={namespace!r}: it is 1 to 40 letters, digits, - or _")
    path = Path(database)
    return str(path.with_name(f"{path.stem}.{namespace}{path.suffix}"))


class Files:
    """The paths of a store."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._name = str(database)
        self.side = database.with_name(database.name + "-holdfast")
        self.turn = self.side / "write.lock"
        self.hint = self.side / "hint"
        self.board = self.side / "board"
        self.workers = self.side / "workers"
        self.wal = database.with_name(database.name + "-wal")

    def make(self) -> None:
        """Make the side directory. Refuses what no SQLite database can live on."""
        if self.database.name == ":memory:":
            raise InvalidRequest("a SQLite store is a file; for one that keeps nothing use memory://")
        try:
            self._check_place()
            self.workers.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot open {self.database}: {error.strerror or error} for {error.filename}; "
                "give this user write permission to the directory of the database"
            ) from error

    def _check_place(self) -> None:
        utf8_name(self.database)
        directory = self.database.parent
        if not directory.is_dir():
            raise StoreUnavailable(f"cannot open {self.database}: there is no directory {directory}; create it first")
        if self.database.is_dir():
            raise StoreUnavailable(f"cannot open {self.database}: it is a directory; name a file")
        kind = file_system_type(directory)
        if is_network(kind):
            raise StoreUnavailable(
                f"cannot open {self.database}: it lies on a network file system ({kind}), on which SQLite loses data; "
                "use a local disk, or Postgres for several machines"
            )

    def identity(self) -> int:
        """Which file stands at the path now; 0 if none does. What is written to another one would be lost."""
        try:
            return os.stat(self._name).st_ino  # noqa: PTH116 - asked before each transaction; Path takes twice as long
        except OSError:
            return 0


def utf8_name(path: Path) -> str:
    """The name of a file as SQLite reads it: in UTF-8, even if the locale has another encoding."""
    try:
        return os.fsencode(path).decode()
    except UnicodeError:
        raise StoreUnavailable(
            f"cannot open {str(path)!r}: SQLite takes only paths in UTF-8; choose another one"
        ) from None


def file_system_type(directory: Path) -> str | None:
    """The type of the file system a directory lies on, such as `ext4`; None where it cannot be told."""
    try:
        mounts = _MOUNTS.read_bytes().rstrip().split(b"\n")
    except OSError:
        return None
    place = directory.resolve()
    found: tuple[int, str] | None = None
    for line in mounts:
        before, _, after = line.partition(b" - ")
        point = Path(os.fsdecode(_ESCAPED.sub(_unescaped, before.split(b" ")[4])))
        # Of equal mount points the last one covers the others.
        if place.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = len(point.parts), after.split(b" ")[0].decode(errors="replace")
    return found[1] if found else None


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)])


def is_network(kind: str | None) -> bool:
    return kind in _NETWORK_TYPES
