"""Liveness: each worker holds a lock on its own file. The operating system releases the lock when the process ends.

So other workers take over the runs of a killed worker within a second, not at the end of their leases. For a worker
without such a file, only its lease counts. Nothing here trusts a clock.
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
    """Holds the locks of this process's workers, and probes those of other processes. For one thread only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        self._contested: set[str] = set()
        self._retiring: set[str] = set()
        self._probed_at = -PROBE_SECONDS

    # Workers of this process

    def hold(self, worker_id: str) -> None:
        """Lock the file of a worker until the worker retires or this process ends."""
        if worker_id in self._own:
            return
        path = self._path(worker_id)
        for _ in range(1 if worker_id in self._contested else _HOLD_ATTEMPTS):
            file = _grab(path, may_create=True)
            if file is not None:
                self._own[worker_id] = file
                return
            time.sleep(_HOLD_PAUSE_SECONDS)  # another process is probing the lock
        self._contested.add(worker_id)  # another process uses the same worker id; its lock counts for both

    def retiring(self, worker_id: str) -> None:
        """Note that a worker is about to retire. Can be called from any thread.

        If retiring fails, the file stays without a lock, so that other processes find the worker dead.
        """
        self._retiring.add(worker_id)

    def release(self, worker_id: str) -> None:
        """Remove the file of a worker. Runs that it still holds stay with it until their leases expire."""
        self._retiring.discard(worker_id)
        file = self._own.pop(worker_id, None)
        if file is not None:
            self._path(worker_id).unlink(missing_ok=True)
            os.close(file)

    def release_all(self) -> None:
        self._release_dead()
        for worker_id in self._retiring & self._own.keys():
            os.close(self._own.pop(worker_id))
        for worker_id in list(self._own):
            self.release(worker_id)

    def abandon(self) -> None:
        """Close the inherited locks in a forked child. They belong to the parent and must not outlive it."""
        for file in (*self._own.values(), *self._dead.values()):
            os.close(file)
        self._own.clear()
        self._dead.clear()

    # Workers of other processes

    def is_elsewhere(self, worker_id: str) -> bool:
        """Return True if a worker has a file and belongs to another process, so that a probe can find it dead."""
        return worker_id not in self._own and self._path(worker_id).exists()

    def find_dead(self, suspects: Callable[[], Iterable[str]]) -> list[str]:
        """Return the suspects that are dead. Probes at most once a second.

        Keeps the locks of the dead workers, so that no other process finds the same ones.
        """
        now = time.monotonic()
        if now - self._probed_at < PROBE_SECONDS:
            return []
        self._probed_at = now
        self._release_dead()
        for worker_id in suspects():
            if worker_id in self._own:
                continue
            file = _grab(self._path(worker_id))
            if file is not None:
                self._dead[worker_id] = file
        return list(self._dead)

    def remove(self, worker_id: str) -> None:
        """Remove the file of a dead worker. Called once its runs are free."""
        self._path(worker_id).unlink(missing_ok=True)
        os.close(self._dead.pop(worker_id))

    def _release_dead(self) -> None:
        for file in self._dead.values():
            os.close(file)
        self._dead.clear()

    def _path(self, worker_id: str) -> Path:
        return lock_path(self._directory, worker_id)


def lock_path(directory: Path, worker_id: str) -> Path:
    """Return the lock file of a worker. Any characters are allowed in the id."""
    name = quote(worker_id, safe="")
    if len(name) > _NAME_LIMIT:
        name = hashlib.blake2b(worker_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return directory / f"{name}.lock"


def with_deaths(workers: Iterable[WorkerRecord], directory: Path) -> list[WorkerRecord]:
    """Return the workers, with killed ones marked as dead. Their leases stay: only a claim takes them over."""
    return [replace(worker, is_dead=True) if is_free(lock_path(directory, worker.id)) else worker for worker in workers]


def is_free(path: Path) -> bool:
    """Return True if a lock file exists and is not locked: its worker was killed."""
    file = _grab(path, lock=fcntl.LOCK_SH)  # shared, so that concurrent probes do not block each other
    if file is None:
        return False
    os.close(file)
    return True


def _grab(path: Path, *, may_create: bool = False, lock: int = fcntl.LOCK_EX) -> int | None:
    """Open and lock a file. Returns None if it does not exist or is already locked."""
    try:
        file = open_beside(path) if may_create else os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
        # The last owner may have removed the file between open and lock. Then this lock is on an unlinked file, and
        # means nothing.
        if os.fstat(file).st_ino == path.stat().st_ino:
            return file
    except OSError:
        pass
    os.close(file)
    return None
