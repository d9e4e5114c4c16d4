"""Problems with the file: one kind of error that names the problem and the file. Afterwards the store continues."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite import files as files_module
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.testing.contract.arrange import an_id, an_intent, start
from tests.folders import reachable_directory

NOBODY = 65_534


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Drop root privileges for a while, because root can write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=re.escape(f"there is no directory {tmp_path}/nowhere; create it first")):
        await SqliteStore(tmp_path / "nowhere" / "runs.db").open()


async def test_a_directory_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="it is a directory; name a file"):
        await SqliteStore(tmp_path).open()
    with pytest.raises(StoreUnavailable, match="it is a directory; name a file"):
        SqliteStore(tmp_path).schema()  # what a command asks that creates no store


async def test_a_path_that_is_not_utf8_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"k\xe4se.db")
    with pytest.raises(StoreUnavailable, match="SQLite accepts only paths in UTF-8; choose another path"):
        await SqliteStore(path).open()

    assert list(tmp_path.iterdir()) == []


_OPEN = """
import asyncio, pathlib, sys
from holdfast.stores.sqlite import SqliteStore
asyncio.run(SqliteStore(pathlib.Path(sys.argv[1])).open())
"""


def test_a_path_names_the_same_file_in_any_locale(tmp_path: Path) -> None:
    name = "käse.db".encode()
    ascii_ = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", _OPEN, name], cwd=tmp_path, env=ascii_, check=True)

    assert SqliteStore(tmp_path / os.fsdecode(name)).schema().current > 0


async def test_memory_is_not_a_file() -> None:
    with pytest.raises(InvalidRequest, match="use memory://"):
        await SqliteStore(":memory:").open()


@pytest.fixture
def diary(path: Path) -> Path:
    path.write_text("Dear diary, " * 1_000)
    return path


async def test_a_file_that_is_not_a_database_is_refused(diary: Path) -> None:
    with pytest.raises(StoreUnavailable, match=re.escape(f"{diary} is not a SQLite database")):
        await SqliteStore(diary).open()
    with pytest.raises(StoreUnavailable, match=re.escape(f"{diary} is not a SQLite database")):
        SqliteStore(diary).schema()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user can reach, unlike those of pytest."""
    with reachable_directory() as directory:
        directory.chmod(0o777)
        yield directory
        directory.chmod(0o777)


async def test_a_directory_that_cannot_be_written_is_refused_when_opening(public: Path) -> None:
    set_modes(0o555, public)

    with as_ordinary_user(), pytest.raises(StoreUnavailable, match="write permission"):
        await SqliteStore(public / "runs.db").open()


async def test_a_file_that_cannot_be_written_is_refused_when_opening(public: Path) -> None:
    store = SqliteStore(public / "runs.db")
    await store.open()
    await store.close()
    set_modes(0o444, public / "runs.db")
    set_modes(0o777, store._files.side, store._files.workers)
    set_modes(0o666, store._files.turn, store._files.hint, store._files.board)

    with as_ordinary_user(), pytest.raises(StoreUnavailable, match=r"runs\.db cannot be written"):
        await SqliteStore(public / "runs.db").open()


def set_modes(mode: int, *paths: Path) -> None:
    for path in paths:
        path.chmod(mode)


async def test_a_full_disk_fails_only_writes_that_do_not_fit_until_there_is_space(store: SqliteStore) -> None:
    def limit(transaction: Transaction, more: int) -> None:
        pages = transaction.connection.execute("pragma page_count").get
        transaction.connection.execute(f"pragma max_page_count = {pages + more}")

    await store._writer.run(lambda transaction: limit(transaction, 12))
    big, small = an_intent(1, payload='"' + "x" * 100_000 + '"'), an_intent(2)

    asked = [store.create([big]), store.create([small])]
    too_big, fitting = await asyncio.gather(*asked, return_exceptions=True)
    with pytest.raises(StoreUnavailable, match="the disk is full; nothing was written"):
        await store.create([big])
    await store._writer.run(lambda transaction: limit(transaction, 10_000))
    await start(store, big)

    assert isinstance(too_big, StoreUnavailable)
    assert isinstance(too_big.__cause__, apsw.FullError)
    assert not isinstance(fitting, BaseException)
    assert await store.get(an_id(1)) is not None
    assert await store.get(an_id(2)) is not None


async def test_a_lock_of_another_program_is_named_and_ends_with_it(store: SqliteStore, path: Path) -> None:
    await store._writer.run(lambda transaction: transaction.connection.set_busy_timeout(20))
    shell = apsw.Connection(str(path))
    shell.execute("begin immediate")

    with pytest.raises(StoreUnavailable, match="locked by another program"):
        await store.create([an_intent(1)])
    assert await store.get(an_id(1)) is None  # reading continues
    shell.execute("rollback")
    await start(store, an_intent(1))
    shell.close()


async def test_a_file_that_disappears_is_not_written_to(store: SqliteStore, path: Path) -> None:
    await start(store, an_intent(1))
    aside = path.with_name("aside.db")
    await asyncio.to_thread(path.rename, aside)

    with pytest.raises(StoreUnavailable, match="has disappeared"):
        await store.create([an_intent(2)])
    await asyncio.to_thread(aside.rename, path)
    await start(store, an_intent(3))

    assert await store.get(an_id(1)) is not None
    assert await store.get(an_id(2)) is None


async def test_a_damaged_database_is_an_error_and_the_store_continues(store: SqliteStore) -> None:
    def broken(_transaction: Transaction) -> None:
        raise apsw.CorruptError("database disk image is malformed")

    with pytest.raises(StoreUnavailable, match="is damaged; restore a backup"):
        await store._writer.run(broken)

    await start(store, an_intent(1))


MOUNTS = rb"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / %b rw,relatime - %b server:/export rw
31 22 0:27 / /somewhere\040else rw,relatime - tmpfs tmpfs rw
"""


@pytest.fixture
def share(tmp_path: Path) -> Path:
    """A folder whose name the system writes with escapes."""
    folder = tmp_path / os.fsdecode("the größe\tshare".encode())
    folder.mkdir()
    return folder


def mount(share: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a folder appear on a file system of this kind."""
    point = re.sub(rb"[\s\\]", lambda found: b"\\%03o" % ord(found[0]), os.fsencode(share))  # as Linux does
    mounts = share / "mountinfo"
    mounts.write_bytes(MOUNTS % (point, kind.encode()))
    monkeypatch.setattr(files_module, "_MOUNTS", mounts)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs"])
async def test_network_file_systems_are_refused(share: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mount(share, kind, monkeypatch)

    with pytest.raises(StoreUnavailable, match=rf"network file system \({kind}\)"):
        await SqliteStore(share / "runs.db").open()


@pytest.mark.parametrize("kind", ["overlay", "ext4", "tmpfs", "btrfs", "xfs", "virtiofs", "zfs", "apfs"])
async def test_local_file_systems_are_accepted(share: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mount(share, kind, monkeypatch)
    store = SqliteStore(share / "runs.db")

    await store.open()
    await store.close()

    assert files_module.file_system_type(share) == kind


async def test_the_doctor_finds_a_sound_store_sound(store: SqliteStore) -> None:
    findings = await store.check()

    assert [finding for finding in findings if finding.level == "problem"] == []
    subjects = {finding.subject for finding in findings}
    of_the_file = {"sqlite", "journal", "file system", "disk", "wal", "schema", "side directory", "privacy"}
    assert subjects == {*of_the_file, "slots", "workers"}
