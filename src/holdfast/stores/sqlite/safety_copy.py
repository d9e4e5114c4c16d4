"""The safety copy: a copy of the database file beside it, made before a migration and kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.sqlite.files import PRIVATE_MODE, utf8_name

_MEGABYTE = 1 << 20
_PAGES_AT_ONCE = 4_096


def copy_beside(connection: apsw.Connection, path: Path, number: int) -> Path:
    """Copy a database to `shop.db.before-8`, with what is still in its write-ahead log. Only the owner can read it.

    The copy of an earlier attempt is replaced when the new one is complete.

    Raises:
        StoreUnavailable: The disk has no space for the copy. Nothing was changed.

    """
    copy = path.with_name(f"{path.name}.before-{number}")
    part = copy.with_name(copy.name + ".part")
    needed = connection.execute("pragma page_count").get * connection.execute("pragma page_size").get
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise StoreUnavailable(
            f"the database {path} cannot be migrated: its copy {copy} needs {needed / _MEGABYTE:,.1f} MiB, and only "
            f"{free / _MEGABYTE:,.1f} MiB are free on the disk; nothing was changed; free some space and try again"
        )
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE))
        _write(connection, part)
        part.replace(copy)
        _sync_directory(copy.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return copy


def _write(connection: apsw.Connection, part: Path) -> None:
    target = apsw.Connection(utf8_name(part), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with target.backup("main", connection, "main") as backup:
            while not backup.done:
                backup.step(_PAGES_AT_ONCE)
    finally:
        target.close()


def _sync_directory(directory: Path) -> None:
    """Make the new name durable."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
