"""Files: the database and the directory beside it, which holds what its processes tell each other.

They are private to their owner unless a mode says otherwise: payloads are in them, and whoever can open the lock file,
even for reading only, can keep all others from writing. SQLite gives its own files beside the database the same mode.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from holdfast.core.errors import InvalidRequest, StoreUnavailable

PRIVATE_MODE = 0o600

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
"""How the system writes what would end a word in there, and nothing else: a space is `\\040`."""

# WAL needs shared memory and locks that these do not give across machines.
_NETWORK_TYPES = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3"}
    | {"smbfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"}
)


_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MODE = re.compile(r"0?6[046]{2}")


def in_namespace(database: str, namespace: str) -> str:
    """The file of a namespace: beside that of the whole, as SQLite locks files as a whole."""
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidRequest(f"namespace={namespace!r}: it is 1 to 40 letters, digits, - or _")
    path = Path(database)
    return str(path.with_name(f"{path.stem}.{namespace}{path.suffix}"))


def mode_of(text: str) -> int:
    """The mode of new files, as a URL has it: `0640` lets the group read, `0660` lets it write too."""
    if not _MODE.fullmatch(text):
        raise InvalidRequest(f"mode={text!r}: it is the permissions of new files in octal, such as 0600, 0640 or 0660")
    return int(text, 8)


def open_beside(path: Path) -> int:
    """Open a file in the side directory for reading and writing; one that is new has the mode of the directory."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(file, path.parent.stat().st_mode & 0o666)  # whatever the umask is
    return file


class Files:
    """The paths of a store. `mode` is that of the database if it is new."""

    def __init__(self, database: Path, mode: int = PRIVATE_MODE) -> None:
        self.database = database
        self.mode = mode
        self._name = str(database)
        self.side = database.with_name(database.name + "-holdfast")
        self.turn = self.side / "write.lock"
        self.hint = self.side / "hint"
        self.board = self.side / "board"
        self.workers = self.side / "workers"
        self.wal = database.with_name(database.name + "-wal")

    def make(self) -> None:
        """Make the database file and the side directory. Refuses what no SQLite database can live on."""
        if self.database.name == ":memory:":
            raise InvalidRequest("a SQLite store is a file; for one that keeps nothing use memory://")
        try:
            self._check_place()
            self._make_database()
            self._make_directory(self.side)
            self._make_directory(self.workers)
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

    def _make_database(self) -> None:
        # Before SQLite does, which would let everybody read it. What a link leads to counts, not the link.
        place = os.path.realpath(self._name)
        with suppress(FileExistsError):
            file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
            os.fchmod(file, self.mode)  # whatever the umask is
            os.close(file)

    def _make_directory(self, path: Path) -> None:
        """Make a directory that those may use who may use the database."""
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            mode = self.database.stat().st_mode & 0o666
            path.chmod(mode | (mode & 0o444) >> 2)

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
