"""Files: the database and the side directory, through which processes share locks and hints.

Only the owner can access them unless a mode says otherwise. The database holds payloads. A user who can open the lock
file, even read-only, can block all writers. SQLite gives its own files beside the database the same mode.
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
"""An escaped byte in mountinfo. The kernel escapes only characters that would end a field: a space is `\\040`."""

# WAL mode needs shared memory and locks, which these do not provide across machines.
_NETWORK_TYPES = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3"}
    | {"smbfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"}
)


_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MODE = re.compile(r"0?6[046]{2}")


def in_namespace(database: str, namespace: str) -> str:
    """Return the file of a namespace. Each namespace has its own file, because SQLite locks whole files."""
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidRequest(f"namespace={namespace!r}: expected 1 to 40 letters, digits, - or _")
    path = Path(database)
    return str(path.with_name(f"{path.stem}.{namespace}{path.suffix}"))


def mode_of(text: str) -> int:
    """Parse the mode of new files from a URL: `0640` lets the group read, `0660` lets it write too."""
    if not _MODE.fullmatch(text):
        raise InvalidRequest(
            f"mode={text!r}: expected the permissions of new files in octal, such as 0600, 0640 or 0660"
        )
    return int(text, 8)


def open_beside(path: Path) -> int:
    """Open a file in the side directory for reading and writing. A new file gets the mode of the directory."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(file, path.parent.stat().st_mode & 0o666)  # not subject to the umask
    return file


class Files:
    """The paths of a store. `mode` applies to a new database."""

    def __init__(self, database: Path, mode: int = PRIVATE_MODE) -> None:
        self.database = database
        self.mode = mode
        self.side = database.with_name(database.name + "-holdfast")
        self.turn = self.side / "write.lock"
        self.hint = self.side / "hint"
        self.board = self.side / "board"
        self.workers = self.side / "workers"
        self.wal = database.with_name(database.name + "-wal")

    def make(self) -> None:
        """Create the database file and the side directory. Refuses paths that SQLite cannot safely use."""
        if self.database.name == ":memory:":
            raise InvalidRequest("a SQLite store is a file; use memory:// for a store that keeps nothing")
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
                f"cannot open {self.database}: it is on a network file system ({kind}), on which SQLite loses data; "
                "use a local disk, or Postgres for several machines"
            )

    def _make_database(self) -> None:
        # Before SQLite creates it, which would let every user read it. `realpath`, because O_EXCL fails on a symlink,
        # even if its target does not exist yet.
        place = os.path.realpath(self.database)
        with suppress(FileExistsError):
            file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
            os.fchmod(file, self.mode)  # not subject to the umask
            os.close(file)

    def _make_directory(self, path: Path) -> None:
        """Create a directory for the users that can access the database."""
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            mode = self.database.stat().st_mode & 0o666
            path.chmod(mode | (mode & 0o444) >> 2)


def utf8_name(path: Path) -> str:
    """Return the name of a file as SQLite expects it: in UTF-8, even if the locale has another encoding."""
    try:
        return os.fsencode(path).decode()
    except UnicodeError:
        raise StoreUnavailable(
            f"cannot open {str(path)!r}: SQLite accepts only paths in UTF-8; choose another path"
        ) from None


def file_system_type(directory: Path) -> str | None:
    """Return the type of a directory's file system, such as `ext4`, or None if it is unknown."""
    try:
        mounts = _MOUNTS.read_bytes().rstrip().split(b"\n")
    except OSError:
        return None
    place = directory.resolve()
    found: tuple[int, str] | None = None
    for line in mounts:
        before, _, after = line.partition(b" - ")
        point = Path(os.fsdecode(_ESCAPED.sub(_unescaped, before.split(b" ")[4])))
        # `>=`: if a mount point occurs twice, the later mount covers the earlier one.
        if place.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = len(point.parts), after.split(b" ")[0].decode(errors="replace")
    return found[1] if found else None


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)])


def is_network(kind: str | None) -> bool:
    return kind in _NETWORK_TYPES
