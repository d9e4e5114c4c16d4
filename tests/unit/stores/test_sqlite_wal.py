"""The preallocated log."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from holdfast.core.questions import EndsOf
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.writer import _COMMITS_BEFORE_ALLOCATING, _FRAME_BYTES, WAL_PAGES, Wal
from holdfast.testing.contract.arrange import an_intent

ALLOCATED_BYTES = WAL_PAGES * _FRAME_BYTES


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


async def write(store: SqliteStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await store.create([an_intent(number)])


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


async def allocated(path: Path) -> SqliteStore:
    store = await opened(path)
    await write(store, _COMMITS_BEFORE_ALLOCATING + 5)
    await store._writer.run(lambda _: None)  # the thread has worked on it since
    await store._writer.run(lambda _: None)
    return store


async def test_a_process_that_writes_a_little_leaves_the_log_small(tmp_path: Path) -> None:
    store = await opened(tmp_path / "a.db")
    await write(store, 3)
    assert wal_of(tmp_path / "a.db").stat().st_size < ALLOCATED_BYTES
    await store.close()


async def test_a_process_that_writes_more_allocates_the_log_once(tmp_path: Path) -> None:
    store = await allocated(tmp_path / "a.db")
    assert wal_of(tmp_path / "a.db").stat().st_size == ALLOCATED_BYTES
    await write(store, 50, first=1000)
    assert wal_of(tmp_path / "a.db").stat().st_size == ALLOCATED_BYTES
    await store.close()


async def test_commits_in_an_allocated_log_survive_a_power_cut(tmp_path: Path) -> None:
    """The files as they are on disk at some moment, without the shared memory that a running process has."""
    store = await allocated(tmp_path / "a.db")
    await write(store, 20, first=1000)
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"a.db{suffix}", tmp_path / f"b.db{suffix}")
    await store.close()

    copy = apsw.Connection(str(tmp_path / "b.db"))
    assert copy.execute("pragma integrity_check").get == "ok"
    assert copy.execute("select count(*) from run").get == _COMMITS_BEFORE_ALLOCATING + 25
    copy.close()


async def test_a_log_that_is_copied_back_is_overwritten_from_its_beginning(tmp_path: Path) -> None:
    store = await allocated(tmp_path / "a.db")
    for round_ in range(5):
        await store.create([an_intent(2000 + 1000 * round_ + number) for number in range(1000)])
    assert wal_of(tmp_path / "a.db").stat().st_size <= 2 * ALLOCATED_BYTES
    assert len(await store.changes(EndsOf(run_ids=[]))) == 0
    await store.close()


async def test_the_log_is_not_preallocated_while_another_program_writes(path: Path, store: SqliteStore) -> None:
    await write(store, 1)
    stranger = apsw.Connection(str(path))
    stranger.execute("begin immediate")
    before = wal_of(path).stat().st_size
    connection = apsw.Connection(str(path))
    with pytest.raises(apsw.BusyError):
        Wal(wal_of(path)).allocate(connection)
    assert wal_of(path).stat().st_size == before
    connection.close()
    stranger.close()
