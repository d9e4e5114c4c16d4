"""Liveness: a worker holds a lock on a file of its own as long as its process lives, however that process ends.

So the runs of a worker that was killed are taken over within a second, not at the end of their leases. A worker
without such a file is left to its lease. The locks are the operating system's; nothing here trusts a clock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from holdfast.core.model import WorkerRecord
from holdfast.stores.sqlite.files import open_beside

PROBE_SECONDS = 1.0
_NAME_LIMIT = 200
_HOLD_ATTEMPTS = 100
_HOLD_PAUSE_SECONDS = 0.001


class WorkerLocks:
    """The locks of the workers of this process, and what can be told of those of others. For one thread only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        self._contested: set[str] = set()
        self._retiring: set[str] = set()
        self._probed_at = -PROBE_SECONDS

    # Of this process

    def hold(self, worker_id: str) -> None:
        """Lock a worker's file until it retires, or this process ends."""
        if worker_id in self._own:
            return
        path = self._path(worker_id)
        for _ in range(1 if worker_id in self._contested else _HOLD_ATTEMPTS):
            file = _grab(path, may_create=True)
            if file is not None:
                self._own[worker_id] = file
                return
            time.sleep(_HOLD_PAUSE_SECONDS)  # somebody looks whether it is free
        self._contested.add(worker_id)  # another process has the same id; then that one's life counts

    def retiring(self, worker_id: str) -> None:
        """A worker is about to retire. Should that fail, its file stays, so that it is found dead. From any thread."""
        self._retiring.add(worker_id)

    def release(self, worker_id: str) -> None:
        """Remove a worker's file: what it still holds is left to its leases."""
        self._retiring.discard(worker_id)
        file = self._own.pop(worker_id, None)
        if file is not None:
            self._path(worker_id).unlink(missing_ok=True)
            os.close(file)

    def release_all(self) -> None:
        self._let_go_of_dead()
        for worker_id in self._retiring & self._own.keys():
            os.close(self._own.pop(worker_id))
        for worker_id in list(self._own):
            self.release(worker_id)

    def abandon(self) -> None:
        """In a forked child: these locks are the parent's, and must not outlive it."""
        for file in (*self._own.values(), *self._dead.values()):
            os.close(file)
        self._own.clear()
        self._dead.clear()

    # Of others

    def is_elsewhere(self, worker_id: str) -> bool:
        """Whether a worker has a file and belongs to another process, so that it may be found dead any second."""
        return worker_id not in self._own and self._path(worker_id).exists()

    def find_dead(self, suspects: Callable[[], Iterable[str]]) -> list[str]:
        """Which of the workers live no more. Looks at most once a second; whom it finds, no other process finds."""
        now = time.monotonic()
        if now - self._probed_at < PROBE_SECONDS:
            return []
        self._probed_at = now
        self._let_go_of_dead()
        for worker_id in suspects():
            if worker_id in self._own:
                continue
            file = _grab(self._path(worker_id))
            if file is not None:
                self._dead[worker_id] = file
        return list(self._dead)

    def remove(self, worker_id: str) -> None:
        """Remove the file of a worker that was found dead, once its runs are free."""
        self._path(worker_id).unlink(missing_ok=True)
        os.close(self._dead.pop(worker_id))

    def _let_go_of_dead(self) -> None:
        for file in self._dead.values():
            os.close(file)
        self._dead.clear()

    def _path(self, worker_id: str) -> Path:
        return lock_path(self._directory, worker_id)


def lock_path(directory: Path, worker_id: str) -> Path:
    """The file of a worker, whatever characters its id has."""
    name = quote(worker_id, safe="")
    if len(name) > _NAME_LIMIT:
        name = hashlib.blake2b(worker_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return directory / f"{name}.lock"


def with_deaths(workers: Iterable[WorkerRecord], directory: Path) -> list[WorkerRecord]:
    """The same workers, those marked that were killed. Nothing is taken from them; that is for who claims."""
    return [replace(worker, is_dead=True) if is_free(lock_path(directory, worker.id)) else worker for worker in workers]


def is_free(path: Path) -> bool:
    """Whether a lock file is there and nobody holds it: its worker was killed."""
    file = _grab(path, lock=fcntl.LOCK_SH)  # so that of several who look none is in the way of another
    if file is None:
        return False
    os.close(file)
    return True


def _grab(path: Path, *, may_create: bool = False, lock: int = fcntl.LOCK_EX) -> int | None:
    """Open and lock a file; None if it is not there, or somebody else has it."""
    try:
        file = open_beside(path) if may_create else os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
        # Between opening and locking its last owner may have removed it; then the lock is on a file without a name.
        if os.fstat(file).st_ino == path.stat().st_ino:
            return file
    except OSError:
        pass
    os.close(file)
    return None
