"""The preallocated log, and small operations that the caller executes itself."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import threading
from pathlib import Path

import apsw
import pytest

from holdfast.core.checkpoint import Suspend
from holdfast.core.commands import EmitEvents
from holdfast.core.errors import KeyConflict
from holdfast.core.model import Event, Wait, WaitKind
from holdfast.core.questions import EndsOf
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.stores.sqlite.wal import _COMMITS_BEFORE_ALLOCATING, _FRAME_BYTES, PAGES, Wal
from holdfast.testing.contract.arrange import an_id, an_intent, checkpoint_for, held

ALLOCATED_BYTES = PAGES * _FRAME_BYTES


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


async def quick(path: Path) -> SqliteStore:
    store = await opened(path)
    store._writer._routes.commit_seconds = 0.0
    return store


def thread_of(transaction: Transaction) -> int:
    transaction.one("select 1")
    return threading.get_ident()


async def test_a_small_operation_is_executed_by_its_caller_while_commits_are_quick(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    assert await store._writer.run_small(thread_of) == threading.get_ident()
    await store.close()


async def test_a_small_operation_is_left_to_the_thread_when_commits_are_slow(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    store._writer._routes.commit_seconds = 0.5
    assert await store._writer.run_small(thread_of) != threading.get_ident()
    await store.close()


async def test_many_small_operations_at_once_share_a_commit_except_the_first(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    threads = await asyncio.gather(*(store._writer.run_small(thread_of) for _ in range(20)))
    assert threads[0] == threading.get_ident()
    assert threading.get_ident() not in threads[1:]
    await store.close()


async def test_an_operation_that_turns_out_to_be_large_is_left_to_the_thread(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    assert await store._writer.run_small(thread_of, is_small=lambda _: True) == threading.get_ident()
    await asyncio.sleep(0)
    assert await store._writer.run_small(thread_of, is_small=lambda _: False) != threading.get_ident()
    await store.close()


@pytest.mark.parametrize(("waiting", "is_few"), [(0, True), (3, True), (4, False)])
async def test_an_event_is_small_if_few_runs_wait_for_it(tmp_path: Path, waiting: int, is_few: bool) -> None:
    store = await quick(tmp_path / "a.db")
    for number in range(waiting):
        lease = await held(store, number)
        wait = Wait(location="e", kind=WaitKind.EVENT, names=("topic",), since=lease.run.created_at)
        await store.checkpoint([checkpoint_for(lease, Suspend(), waits=(wait,))])
    event = Event(id="e", topic="topic", payload="1")

    assert await store._writer.run(lambda transaction: not transaction.waits.has_more_than(event.topic, 3)) is is_few
    assert list(await store.apply(EmitEvents(events=[event]))) == [waiting]
    await store.close()


def reading_thread(connection: apsw.Connection) -> int:
    assert connection.execute("select count(*) from run").get == 0
    return threading.get_ident()


async def test_a_small_read_is_executed_by_its_caller_while_reads_are_quick(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    assert await store._readers.run_small(reading_thread) != threading.get_ident(), "it is not known yet"
    store._readers._read_seconds = 0.0
    assert await store._readers.run_small(reading_thread) == threading.get_ident()
    assert await store._readers.run_small(reading_thread) != threading.get_ident(), "others have their turn"
    store._readers._read_seconds = 0.5
    await asyncio.sleep(0)
    assert await store._readers.run_small(reading_thread) != threading.get_ident()
    await store.close()


async def test_a_small_read_that_fails_is_retried_by_a_thread(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    store._readers._read_seconds = 0.0

    def breaks_here(connection: apsw.Connection) -> int:
        if threading.current_thread() is threading.main_thread():
            connection.execute("select no_such_column from run")
        return reading_thread(connection)

    assert await store._readers.run_small(breaks_here) != threading.get_ident()
    await store.close()


async def test_a_small_operation_never_waits_for_the_turn_of_another_process(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    with (tmp_path / "a.db-holdfast" / "write.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asked = store._writer.run_small(thread_of)
        await asyncio.sleep(0)
        assert not asked.done()
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert await asked != threading.get_ident()
    await store.close()


async def test_a_small_operation_never_waits_for_another_program_that_writes(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    stranger = apsw.Connection(str(tmp_path / "a.db"))
    stranger.execute("begin immediate")
    asked = store._writer.run_small(thread_of)
    await asyncio.sleep(0)
    assert not asked.done()
    stranger.execute("rollback")
    assert await asked != threading.get_ident()
    stranger.close()
    await store.close()


async def test_a_refusal_of_a_small_operation_reaches_its_caller_and_writes_nothing(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    await store.create([an_intent(1, key="k")])
    store._writer._routes.commit_seconds = 0.0
    with pytest.raises(KeyConflict):
        await store.create([an_intent(2, key="k", payload='{"other":1}')])
    assert await store.get(an_id(2)) is None
    await store.close()


async def test_a_small_operation_that_fails_is_retried_by_the_thread(tmp_path: Path) -> None:
    store = await quick(tmp_path / "a.db")
    seen: list[int] = []

    def breaks_here(transaction: Transaction) -> str:
        seen.append(threading.get_ident())
        if len(seen) == 1:
            transaction.one("select no_such_column from run")
        return "done"

    assert await store._writer.run_small(breaks_here) == "done"
    assert seen[0] == threading.get_ident() != seen[1]
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
