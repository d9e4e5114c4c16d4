"""The check-up: findings about the health of the store and its environment, for `holdfast doctor`."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator

import apsw

from holdfast.core.clock import SECOND, Micros
from holdfast.core.ports import Finding
from holdfast.stores.migrations import finding_of_schema
from holdfast.stores.operations.limits import finding_of
from holdfast.stores.sqlite import limits, reads, schema
from holdfast.stores.sqlite.files import Files, file_system_type, is_network
from holdfast.stores.sqlite.liveness import lock_path, with_deaths

_SOUND_VERSION = 3_051_003
_MEGABYTE = 1 << 20
_FREE_PROBLEM_BYTES = 100 * _MEGABYTE
_FREE_WARNING_BYTES = 1_000 * _MEGABYTE
_WAL_WARNING_BYTES = 256 * _MEGABYTE
_SILENCE: Micros = 120 * SECOND

# Locks and shared memory usually work on these within one machine, but without a guarantee.
_DOUBTFUL_TYPES = ("9p", "fuse", "fuseblk", "vboxsf", "prl_fs", "drvfs")


def findings(connection: apsw.Connection, files: Files, now: Micros) -> list[Finding]:
    """Return at least one finding per subject. A finding that is not `ok` says what to do."""
    return [
        _sqlite(),
        _journal(connection),
        _file_system(files),
        _disk(files),
        _wal(files),
        finding_of_schema(schema.status(connection, files.database, schema.migrations())),
        _side_directory(files),
        _privacy(files),
        finding_of(limits.stray(connection)),
        *_workers(connection, files, now),
    ]


def _privacy(files: Files) -> Finding:
    """Check that other users of the machine cannot read payloads or take the write lock."""
    wide = [str(path) for path in (files.database, files.side) if path.stat().st_mode & stat.S_IROTH]
    if wide:
        return Finding.warning(
            "privacy",
            f"every user of this machine can open {' and '.join(wide)}, and so read payloads or hold the write lock; "
            f"run chmod o= {files.database}* and chmod o= {files.side}",
        )
    return Finding.ok("privacy", "other users of this machine cannot read the database")


def _sqlite() -> Finding:
    version = apsw.sqlite_lib_version()
    if apsw.SQLITE_VERSION_NUMBER < _SOUND_VERSION:
        return Finding.problem("sqlite", f"SQLite {version} can corrupt a database after a WAL reset; upgrade apsw")
    return Finding.ok("sqlite", f"SQLite {version} through apsw {apsw.apsw_version()}")


def _journal(connection: apsw.Connection) -> Finding:
    mode = connection.execute("pragma journal_mode").get
    if mode != "wal":
        return Finding.problem(
            "journal", f"journal mode is {mode}, not wal; another program has changed it; restart holdfast"
        )
    return Finding.ok("journal", "journal mode is wal")


def _file_system(files: Files) -> Finding:
    kind = file_system_type(files.database.parent)
    if kind is None:
        return Finding.ok(
            "file system", "its type is unknown on this system; make sure that it is not a network file system"
        )
    if is_network(kind):
        return Finding.problem(
            "file system", f"{kind} is a network file system, on which SQLite loses data; use a local disk"
        )
    if kind.startswith(_DOUBTFUL_TYPES):
        return Finding.warning("file system", f"{kind} may not enforce locks between processes; a local disk is safer")
    return Finding.ok("file system", kind)


def _disk(files: Files) -> Finding:
    free = shutil.disk_usage(files.database.parent).free
    text = f"{free // _MEGABYTE:,} MiB free on the disk of {files.database}"
    if free < _FREE_PROBLEM_BYTES:
        return Finding.problem("disk", f"only {text}; free some space before writes fail")
    return Finding.warning("disk", f"only {text}") if free < _FREE_WARNING_BYTES else Finding.ok("disk", text)


def _wal(files: Files) -> Finding:
    size = files.wal.stat().st_size if files.wal.exists() else 0
    text = f"the write-ahead log has {size / _MEGABYTE:,.1f} MiB"
    if size > _WAL_WARNING_BYTES:
        return Finding.warning(
            "wal",
            f"{text}; a program may be holding a read transaction open, which keeps SQLite from resetting the log; "
            "find it and close it",
        )
    return Finding.ok("wal", text)


def _side_directory(files: Files) -> Finding:
    if not os.access(files.side, os.W_OK | os.X_OK):
        return Finding.problem("side directory", f"cannot write to {files.side}; give this user write permission")
    return Finding.ok("side directory", str(files.side))


def _workers(connection: apsw.Connection, files: Files, now: Micros) -> Iterator[Finding]:
    workers = with_deaths(reads.workers(connection), files.workers)
    for worker in workers:
        who = f"worker {worker.id} ({worker.name}, pid {worker.pid} on {worker.host})"
        if worker.is_dead:
            yield Finding.warning("workers", f"{who} was killed; another worker takes over its runs at its next claim")
        elif now - worker.heartbeat_at > _SILENCE:
            silence = (now - worker.heartbeat_at) // SECOND
            has_file = lock_path(files.workers, worker.id).exists()
            hangs = "is running but hangs" if has_file else "ended without retiring"
            yield Finding.warning("workers", f"{who} sent its last heartbeat {silence:,} s ago: it {hangs}")
    if not workers:
        yield Finding.ok("workers", "none is running")
    else:
        yield Finding.ok("workers", f"{len(workers)} registered")
