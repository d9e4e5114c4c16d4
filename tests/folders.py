"""Temporary folders of tests: in memory where there is room, or where every user can reach them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import InvalidRequest

MEMORY = Path("/dev/shm")  # noqa: S108
"""A folder in memory, on systems that have one. There a commit need not wait for a disk."""
_ENOUGH_BYTES = 4 * 2**30
"""Free memory that a test run needs there: enough for all its databases."""
_OPEN = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108
"""Folders that every user can usually reach, also where only root can reach `TMPDIR`."""


def has_room(folder: Path) -> bool:
    """Return True if a folder has enough room for all files of a test run."""
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ENOUGH_BYTES


def folder_for(user: int | None, prefix: str, *, in_memory: bool) -> Path:
    """Return a new temporary folder, owned by the user if there is one. In memory, if there is enough of it."""
    usual = Path(tempfile.gettempdir())
    memory = [MEMORY] if in_memory and has_room(MEMORY) else []
    if user is None:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=(memory or [usual])[0]))
    places = [place for place in (*memory, usual, *_OPEN) if _is_open(place)]
    if not places:
        raise InvalidRequest(f"no temporary folder can be reached by the user {user}, as whom the server is to run")
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=places[0]))
    os.chown(folder, user, -1)
    return folder


@contextmanager
def reachable_directory() -> Iterator[Path]:
    """A temporary directory that every user can reach."""
    usual = Path(tempfile.gettempdir())
    place = next((place for place in (usual, *_OPEN) if _is_open(place)), usual)
    with tempfile.TemporaryDirectory(dir=place) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _is_open(folder: Path) -> bool:
    return folder.exists() and all(place.stat().st_mode & 0o001 for place in (folder, *folder.resolve().parents))
