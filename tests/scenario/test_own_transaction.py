"""Users' transactions outside of runs: writes inside them exist exactly if the transaction commits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
import pytest_asyncio

from holdfast import (
    Context,
    Holdfast,
    InvalidRequest,
    KeyConflict,
    NotSerializable,
    RunFinished,
    RunNotFound,
    RunState,
    StoreUnavailable,
)
from holdfast.app import session_of
from holdfast.stores.sqlite import hints
from holdfast.testing.patience import GUARD_SECONDS
from tests.stage import url_for


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with shop(url_for(request.param, request) or f"sqlite:///{tmp_path}/shop.db") as hf:
        yield hf


@pytest_asyncio.fixture
async def sqlite_hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with shop(f"sqlite:///{tmp_path}/shop.db") as hf:
        yield hf


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the search for runs without a hint. Workers of these tests do not poll either."""
    monkeypatch.setattr(hints, "_SLOW_POLL_SECONDS", 3600.0)


@asynccontextmanager
async def shop(url: str) -> AsyncIterator[Holdfast]:
    """An application with a table of orders next to its runs."""
    hf = Holdfast(url)

    @hf.workflow("ship")
    async def ship(_ctx: Context, order: int) -> str:
        return f"order {order} is on its way"

    @hf.workflow("parcel")
    async def parcel(ctx: Context) -> Any:
        return await ctx.receive("word")

    @hf.workflow("listener")
    async def listener(ctx: Context) -> Any:
        return await ctx.wait_event("rates")

    async with hf:
        with hf.connection() as connection:
            connection.execute("create table orders (id integer primary key, item text not null)")
        yield hf


# SQL that all databases understand; `connection` is that of the driver.


def place(connection: Any) -> int:
    rows = connection.execute(
        "insert into orders (id, item) select coalesce(max(id), 0) + 1, 'tea' from orders returning id"
    )
    return int(rows.fetchone()[0])


@contextmanager
def rolled_back(hf: Holdfast) -> Iterator[Any]:
    with suppress(LookupError), hf.connection() as connection:
        yield connection
        raise LookupError


def orders(hf: Holdfast) -> int:
    with hf.connection(readonly=True) as connection:
        return int(connection.execute("select count(*) from orders").fetchone()[0])


async def test_a_run_exists_exactly_if_the_transaction_is_committed(hf: Holdfast) -> None:
    with hf.connection() as connection:
        run = await hf.start_in(connection, "ship", {"order": place(connection)}, key="order-1", tags={"shop": "x"})
        with pytest.raises(RunNotFound):
            await run.info()
    assert run.created
    assert (await run.info()).state is RunState.PENDING
    assert [info.id async for info in hf.list(tags={"shop": "x"})] == [run.id]
    assert await hf.run(key="order-1").info() == await run.info()


async def test_a_run_of_a_transaction_that_raised_never_existed(hf: Holdfast) -> None:
    async def fail() -> None:
        with hf.connection() as connection:
            await hf.start_in(connection, "ship", {"order": place(connection)}, id="the-run")
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert orders(hf) == 0
    with pytest.raises(RunNotFound):
        await hf.run("the-run").info()


@pytest.mark.usefixtures("nobody_looks")
async def test_an_idle_worker_claims_the_run_at_once(hf: Holdfast) -> None:
    async with hf._local_workers.make(poll=None) as worker:
        await worker.run_until_idle()
        with hf.connection() as connection:
            run = await hf.start_in(connection, "ship", {"order": place(connection)})
        assert await run.result(timeout=GUARD_SECONDS) == "order 1 is on its way"


async def test_a_connection_of_your_own_works_and_a_worker_finds_the_run_soon(
    sqlite_hf: Holdfast, tmp_path: Path
) -> None:
    connection = apsw.Connection(f"{tmp_path}/shop.db")
    async with sqlite_hf._local_workers.make(poll=None):
        connection.execute("begin immediate")
        run = await sqlite_hf.start_in(connection, "ship", {"order": place(connection)})
        connection.execute("commit")
        assert await run.result(timeout=GUARD_SECONDS) == "order 1 is on its way"
    connection.close()


# Messages and events


@pytest.mark.usefixtures("nobody_looks")
async def test_a_message_arrives_exactly_if_the_transaction_is_committed(hf: Holdfast) -> None:
    run = await hf.start("parcel", key="parcel-1")
    async with hf._local_workers.make(poll=None) as worker:
        await worker.run_until_idle()
        with rolled_back(hf) as connection:
            await hf.send_in(connection, run, "word", f"order {place(connection)} is void")
        with hf.connection() as connection:
            await hf.send_in(connection, run, "word", f"order {place(connection)} is paid")
        assert await run.result(timeout=GUARD_SECONDS) == "order 1 is paid"
    assert orders(hf) == 1


async def test_a_message_may_name_its_run_by_id_or_by_key(hf: Holdfast) -> None:
    first, second = await hf.start("parcel"), await hf.start("parcel", key="parcel-2")
    with hf.connection() as connection:
        await hf.send_in(connection, first.id, "word", 1)
        await hf.send_in(connection, hf.run(key="parcel-2"), "word", 2)
        third = await hf.start_in(connection, "parcel")
        await third.send_in(connection, "word", 3)
    async with hf.worker():
        assert [await run.result(timeout=GUARD_SECONDS) for run in (first, second, third)] == [1, 2, 3]


async def test_a_message_with_the_same_id_is_the_same_message(hf: Holdfast) -> None:
    run = await hf.start("parcel")
    await run.send("word", "first", id="m")
    with hf.connection() as connection:
        await hf.send_in(connection, run, "word", "second", id="m")
    assert (await session_of(hf).store.get(run.id)).run.arrivals == 1  # type: ignore[union-attr]  # there it is


async def test_a_message_that_cannot_be_delivered_is_refused_at_once_without_harm(hf: Holdfast) -> None:
    finished = await hf.start("ship", {"order": 1})
    await hf.worker().run_until_idle()
    with hf.connection() as connection:
        place(connection)
        with pytest.raises(RunFinished, match="'word' was not sent"):
            await hf.send_in(connection, finished, "word")
        with pytest.raises(RunNotFound, match="there is no run nobody"):
            await hf.send_in(connection, "nobody", "word")
        with pytest.raises(RunNotFound, match="no run has the key 'none'"):
            await hf.send_in(connection, hf.run(key="none"), "word")
    assert orders(hf) == 1


@pytest.mark.usefixtures("nobody_looks")
async def test_an_event_exists_exactly_if_the_transaction_is_committed(hf: Holdfast) -> None:
    runs = [await hf.start("listener") for _ in range(2)]
    async with hf._local_workers.make(poll=None) as worker:
        await worker.run_until_idle()
        with rolled_back(hf) as connection:
            await hf.emit_in(connection, "rates", f"void {place(connection)}")
        with hf.connection() as connection:
            assert await hf.emit_in(connection, "rates", f"order {place(connection)}") == 2
        assert [await run.result(timeout=GUARD_SECONDS) for run in runs] == ["order 1"] * 2


async def test_names_and_payloads_are_checked_before_anything_is_written(hf: Holdfast) -> None:
    run = await hf.start("parcel")
    with hf.connection() as connection:
        place(connection)
        with pytest.raises(InvalidRequest, match="message name"):
            await hf.send_in(connection, run, "a/b")
        with pytest.raises(NotSerializable):
            await hf.emit_in(connection, "rates", object())
    assert orders(hf) == 1


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        ("connection", "in a step that passes on its idempotency key"),
        ("start_in", "call hf.start with a key"),
        ("send_in", "call run.send with an id"),
        ("emit_in", "call hf.emit"),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_a_store_without_tables_names_itself_and_another_way(
    kind: str, call: str, instead: str, request: pytest.FixtureRequest
) -> None:
    url = url_for(kind, request) or "memory://"
    async with Holdfast(url) as hf:
        with pytest.raises(InvalidRequest) as refusal:
            await _call_without_tables(hf, call)

    message = str(refusal.value)
    assert message.startswith(f"hf.{call}: {url} cannot hold your tables")
    assert "use sqlite:///file.db or postgresql://…" in message
    assert instead in message


async def _call_without_tables(hf: Holdfast, call: str) -> None:
    match call:
        case "connection":
            hf.connection()
        case "start_in":
            await hf.start_in(object(), "ship")
        case "send_in":
            await hf.send_in(object(), "a-run", "word")
        case _:
            await hf.emit_in(object(), "rates")


# Refusals


async def test_a_key_that_is_taken_is_refused_without_harm(hf: Holdfast) -> None:
    await hf.start("ship", {"order": 1}, key="k")
    with hf.connection() as connection:
        place(connection)
        same = await hf.start_in(connection, "ship", {"order": 1}, key="k")
        with pytest.raises(KeyConflict):
            await hf.start_in(connection, "ship", {"order": 2}, key="k")
    assert not same.created
    assert orders(hf) == 1


async def test_the_arguments_are_checked_before_anything_is_written(hf: Holdfast) -> None:
    with hf.connection() as connection:
        place(connection)
        with pytest.raises(InvalidRequest, match="payload of 'ship'"):
            await hf.start_in(connection, "ship", {"order": "many"})
    assert orders(hf) == 1


async def test_a_connection_of_the_sqlite3_module_is_refused_with_the_reason(sqlite_hf: Holdfast) -> None:
    with closing(sqlite3.connect(":memory:")) as other, pytest.raises(InvalidRequest, match="two SQLite libraries"):
        await sqlite_hf.start_in(other, "ship", {"order": 1})


@pytest.mark.parametrize("name", [":memory:", "other.db"])
async def test_a_connection_to_another_file_is_refused(sqlite_hf: Holdfast, tmp_path: Path, name: str) -> None:
    other = apsw.Connection(name if name == ":memory:" else f"{tmp_path}/{name}")
    other.execute("begin")
    with pytest.raises(InvalidRequest, match=r"runs are stored in .*shop\.db"):
        await sqlite_hf.start_in(other, "ship", {"order": 1})
    other.close()


async def test_a_connection_without_a_transaction_is_refused(sqlite_hf: Holdfast, tmp_path: Path) -> None:
    connection = apsw.Connection(f"{tmp_path}/shop.db")
    with pytest.raises(InvalidRequest, match="no transaction is open"):
        await sqlite_hf.start_in(connection, "ship", {"order": 1})
    connection.close()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("update run set state = 'failed'", "'run' belongs to holdfast"),
        ("drop table entry", "'entry' belongs to holdfast"),
        ("commit", "COMMIT is not allowed here"),
        ("rollback", "ROLLBACK is not allowed here"),
        ("pragma journal_mode = delete", "pragma journal_mode"),
    ],
)
async def test_a_statement_that_would_break_the_store_is_refused(
    sqlite_hf: Holdfast, statement: str, words: str
) -> None:
    with sqlite_hf.connection() as connection:
        place(connection)
        with pytest.raises(InvalidRequest, match=words):
            connection.execute(statement)
    assert orders(sqlite_hf) == 1


async def test_runs_can_be_read_on_a_read_only_connection(sqlite_hf: Holdfast) -> None:
    run = await sqlite_hf.start("ship", {"order": 1})
    with sqlite_hf.connection() as connection:
        assert connection.execute("select id from run").get == run.id
    with sqlite_hf.connection(readonly=True) as connection:
        assert connection.execute("select id from run").get == run.id
        with pytest.raises(apsw.ReadOnlyError):
            connection.execute("delete from orders")


async def test_another_write_inside_the_block_is_refused_instead_of_a_deadlock(
    sqlite_hf: Holdfast,
) -> None:
    with sqlite_hf.connection() as connection:
        place(connection)
        with pytest.raises(InvalidRequest, match="leave the block first"):
            await sqlite_hf.start("ship", {"order": 1})
        with pytest.raises(InvalidRequest, match="leave the block first"), sqlite_hf.connection():
            pass
        later = asyncio.create_task(sqlite_hf.start("ship", {"order": 1}))  # it starts when the block ends
    assert (await later).created
    assert orders(sqlite_hf) == 1


async def test_threads_take_turns_with_each_other_and_with_the_store(sqlite_hf: Holdfast) -> None:
    def place_many() -> None:
        for _ in range(20):
            with sqlite_hf.connection() as connection:
                place(connection)

    async with sqlite_hf.worker():
        threads = [asyncio.to_thread(place_many) for _ in range(4)]
        runs = [sqlite_hf.execute("ship", {"order": number}) for number in range(50)]
        await asyncio.gather(*threads, *runs)
    assert orders(sqlite_hf) == 80


async def test_a_store_that_is_not_open_has_no_connection(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/closed.db")
    with pytest.raises(StoreUnavailable, match="not open"):
        hf.connection()


async def test_foreign_keys_of_users_are_enforced(sqlite_hf: Holdfast) -> None:
    def insert_orphan() -> None:
        with sqlite_hf.connection() as connection:
            connection.execute("create table parcel (order_id references orders (id))")
            connection.execute("insert into parcel values (7)")

    with pytest.raises(apsw.ConstraintError):
        insert_orphan()
