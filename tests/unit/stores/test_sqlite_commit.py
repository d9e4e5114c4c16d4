"""Group commit: callers share a transaction but never a refusal, and no caller waits forever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.checkpoint import Hold
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, EmitEvents, SendMessages
from holdfast.core.errors import InvalidRequest, KeyConflict, RunNotFound, StoreUnavailable
from holdfast.core.model import Event, MessageToRun
from holdfast.core.news import Hint
from holdfast.stores.sqlite import SqliteStore, writer
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.stores.sqlite.writer import Job, Writer
from holdfast.testing.contract.arrange import a_step, a_worker, an_id, an_intent, checkpoint_for, held, start
from holdfast.testing.patience import until, wait_for


class Transactions:
    """Return the number of jobs in each transaction of a store."""

    def __init__(self, writer: Writer) -> None:
        self.sizes: list[int] = []
        transact = writer._transact

        def counting(jobs: list[Job[Transaction]]) -> object:
            self.sizes.append(len(jobs))
            return transact(jobs)

        writer._transact = counting  # type: ignore[method-assign, assignment]


@asynccontextmanager
async def busy(store: SqliteStore) -> AsyncIterator[SqliteStore]:
    """Keep the writer inside a transaction, so that requests gather for the next one."""
    entered, released = threading.Event(), threading.Event()

    def wait(_transaction: Transaction) -> None:
        entered.set()
        wait_for("the writer is let go", released)

    waiting = asyncio.ensure_future(store._writer.run(wait))
    await asyncio.to_thread(wait_for, "the writer is in a transaction", entered)
    try:
        yield store
    finally:
        released.set()
        await waiting


async def queued(store: SqliteStore, count: int) -> None:
    """Wait until this number of jobs is queued for the writer."""
    await until(f"{count} jobs wait for the writer", lambda: store._writer._jobs.qsize() >= count)


async def test_requests_during_a_commit_share_the_next_one(store: SqliteStore) -> None:
    lease = await held(store, 1)
    transactions = Transactions(store._writer)

    async with busy(store):
        asked: list[asyncio.Future[Any]] = [
            asyncio.create_task(store.create([an_intent(2)])),
            asyncio.create_task(store.create([an_intent(3)])),
            asyncio.ensure_future(store.checkpoint([checkpoint_for(lease, Hold(), entries=(a_step("a"),))])),
            asyncio.create_task(
                store.apply(SendMessages(messages=[MessageToRun(id="m", name="n", payload="1", run_id=an_id(1))]))
            ),
            asyncio.create_task(store.apply(EmitEvents(events=[Event(id="e", topic="t", payload="1")]))),
            asyncio.create_task(asyncio.to_thread(store.renew, a_worker(), [], SECOND)),
        ]
        await queued(store, len(asked))
    await asyncio.gather(*asked)

    assert transactions.sizes == [1, len(asked)]
    assert await store.get(an_id(3)) is not None


async def test_a_refusal_reaches_only_its_own_caller(store: SqliteStore) -> None:
    await start(store, an_intent(1, key="taken"))
    transactions = Transactions(store._writer)

    async with busy(store):
        asked = [
            asyncio.create_task(store.create([an_intent(2)])),
            asyncio.create_task(store.create([an_intent(3), an_intent(4, key="taken", payload='{"other":1}')])),
            asyncio.create_task(store.apply(Cancel(run_id="nobody", id="c"))),
            asyncio.create_task(store.create([an_intent(5)])),
        ]
        await queued(store, len(asked))
    first, conflict, unknown, last = await asyncio.gather(*asked, return_exceptions=True)

    assert transactions.sizes == [1, len(asked)]
    assert not isinstance(first, BaseException)
    assert not isinstance(last, BaseException)
    assert isinstance(conflict, KeyConflict)
    assert isinstance(unknown, RunNotFound)
    assert [await store.get(an_id(number)) is not None for number in (2, 3, 4, 5)] == [True, False, False, True]


async def test_a_value_the_database_cannot_store_fails_only_its_own_caller(store: SqliteStore) -> None:
    async with busy(store):
        asked = [
            asyncio.create_task(store.create([an_intent(1)])),
            asyncio.create_task(store.create([an_intent(2, tags={"half a character": "\ud800"})])),
            asyncio.create_task(store.create([an_intent(3)])),
        ]
        await queued(store, len(asked))
    first, broken, last = await asyncio.gather(*asked, return_exceptions=True)

    assert isinstance(broken, InvalidRequest)
    assert not isinstance(first, BaseException)
    assert not isinstance(last, BaseException)
    assert [await store.get(an_id(number)) is not None for number in (1, 2, 3)] == [True, False, True]


async def test_a_bug_in_one_operation_leaves_the_writer_alive(store: SqliteStore) -> None:
    def broken(_transaction: Transaction) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store._writer.run(broken)

    await start(store, an_intent(1))


async def test_renewals_overtake_the_queue(store: SqliteStore) -> None:
    order: list[str] = []
    async with busy(store):
        asked = [asyncio.ensure_future(store._writer.run(lambda _: order.append("checkpoint"))) for _ in range(2)]
        await queued(store, 2)
        asked.append(
            asyncio.create_task(asyncio.to_thread(store._writer.run_blocking, lambda _: order.append("renewal")))
        )
        await queued(store, 3)
    await asyncio.gather(*asked)

    assert order == ["renewal", "checkpoint", "checkpoint"]


async def test_listeners_get_one_hint_for_a_shared_commit(store: SqliteStore) -> None:
    hints: list[Hint] = []
    stop = store.listen(hints.append)

    async with busy(store):
        asked = [asyncio.create_task(store.create([an_intent(n, type=f"type-{n}")])) for n in range(3)]
        await queued(store, len(asked))
    await asyncio.gather(*asked)
    await asyncio.sleep(0)
    stop()

    assert hints == [Hint(ready=frozenset({"type-0", "type-1", "type-2"}))]


async def test_each_answer_goes_to_the_loop_of_its_caller(store: SqliteStore) -> None:
    async def elsewhere() -> asyncio.AbstractEventLoop:
        await start(store, an_intent(1))
        return asyncio.get_running_loop()

    loop = await asyncio.to_thread(asyncio.run, elsewhere())

    assert loop is not asyncio.get_running_loop()
    assert await store.get(an_id(1)) is not None


async def test_a_caller_gives_up_in_time_and_an_operation_not_started_is_not_executed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with busy(store):
        monkeypatch.setattr(writer, "ANSWER_SECONDS", 0.02)
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.02 s"):
            await store.create([an_intent(1)])
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.02 s"):
            await asyncio.to_thread(store.renew, a_worker(), [], SECOND)
    monkeypatch.undo()

    assert await store.get(an_id(1)) is None
    assert await store.workers() == []


async def test_a_cancelled_caller_disturbs_no_other(store: SqliteStore) -> None:
    async with busy(store):
        cancelled = asyncio.create_task(store.create([an_intent(1)]))
        kept = asyncio.create_task(store.create([an_intent(2)]))
        await queued(store, 2)
        cancelled.cancel()
        await asyncio.sleep(0)
    await kept

    assert cancelled.cancelled()
    assert await store.get(an_id(2)) is not None


async def test_the_wal_is_copied_back_between_batches(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store._writer._wal, "_limit", 20)
    monkeypatch.setattr("holdfast.stores.sqlite.writer.WAL_PAGES", 20)
    payload = '"' + "x" * 4_000 + '"'

    for number in range(60):
        await start(store, an_intent(number, payload=payload))

    # The schema takes about 60 pages, and each commit a dozen; without the copying the file would keep them all.
    assert store._files.wal.stat().st_size < 100 * 4_096


async def test_operations_need_an_open_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")

    with pytest.raises(StoreUnavailable, match="is not open"):
        await store.create([an_intent(1)])
    with pytest.raises(StoreUnavailable, match="is not open"):
        store.renew(a_worker(), [], SECOND)


async def test_a_store_can_be_opened_twice_closed_twice_and_opened_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    await store.open()
    await start(store, an_intent(1))
    await store.close()
    await store.close()

    await store.open()
    found = await store.get(an_id(1))
    await store.close()

    assert found is not None


async def test_closing_answers_earlier_requests(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    asked = [asyncio.create_task(store.create([an_intent(number)])) for number in range(20)]
    await asyncio.sleep(0)

    await store.close()

    assert [answer.runs[0].created for answer in await asyncio.gather(*asked)] == [True] * 20
    assert not store._files.wal.exists()


def check_that_nobody_else_may_write(path: Path) -> None:
    stranger = apsw.Connection(str(path))
    with pytest.raises(apsw.BusyError):
        stranger.execute("begin immediate")
    stranger.close()


async def test_no_other_process_writes_between_the_read_and_the_write_of_an_operation(
    store: SqliteStore, path: Path
) -> None:
    await store._writer.run(lambda _: check_that_nobody_else_may_write(path))


async def test_no_other_process_writes_between_the_read_and_the_write_of_a_user_transaction(
    store: SqliteStore, path: Path
) -> None:
    with store.database.connection():
        check_that_nobody_else_may_write(path)
