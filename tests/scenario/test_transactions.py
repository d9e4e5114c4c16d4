"""Transactions of runs: their writes to the store's own database happen exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import (
    Context,
    Fatal,
    Holdfast,
    HoldfastError,
    InvalidRequest,
    Registry,
    Retry,
    RunFailed,
    RunState,
    StepFailed,
    SyncContext,
    step_info,
)
from holdfast.app import session_of
from holdfast.stores.sqlite import database
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from holdfast.testing.patience import guard, guarded, until, wait_for
from tests.stage import DATABASE_KINDS, Stage, facts, url_for

NOW = Retry(max_attempts=3, initial=0, jitter=0)


class Bank(Stage):
    """A database with a table of accounts next to the runs of one application."""

    def __init__(self, folder: Path, kind: str = "sqlite", url: str = "") -> None:
        super().__init__(kind, folder, url)
        self.app = Registry()

    def open(self) -> Harness:
        return self.harness(self.app)

    def open_faulty(self) -> tuple[FaultyStore, Harness]:
        faults = FaultyStore(self.store())
        return faults, self.harness(self.app, wrap=lambda _: faults)


@pytest.fixture(params=DATABASE_KINDS)
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    return Bank(tmp_path, request.param, url_for(request.param, request))


@pytest.fixture(params=["sqlite", "sqlite replay"])
def sqlite_bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    return Bank(tmp_path, request.param)


# SQL that all databases understand; `connection` is that of the driver.


def open_account(connection: Any) -> None:
    connection.execute("create table if not exists account (name text primary key, cents integer not null)")
    connection.execute("insert into account values ('ada', 0) on conflict do nothing")


def deposit(connection: Any, cents: int) -> int:
    query = f"update account set cents = cents + {cents:d} where name = 'ada' returning cents"  # noqa: S608 - a number
    return int(connection.execute(query).fetchone()[0])


def balance(h: Holdfast) -> int:
    with h.connection(readonly=True) as connection:
        return int(connection.execute("select cents from account").fetchone()[0])


def prepare(h: Holdfast) -> None:
    with h.connection() as connection:
        open_account(connection)


# Exactly once


async def test_a_transaction_writes_once_and_its_result_is_used_afterwards(bank: Bank) -> None:
    @bank.app.workflow
    async def save(ctx: Context) -> list[int]:
        first = await ctx.tx("deposit", deposit, 5)
        await ctx.sleep(86400)
        await ctx.receive("go")
        return [first, await ctx.tx("deposit", deposit, 7)]

    async with bank.open() as h:
        prepare(h)
        run = await h.start(save)
        await h.advance(86400)
        await run.send("go")
        assert await run.result() == [5, 12]
        assert balance(h) == 12
        assert "deposit tx done" in await facts(run)
        assert "deposit#2 tx done" in await facts(run)
        assert h.executed == ["deposit", "deposit#2"]


async def test_transactions_beside_steps_and_timers_replay_in_their_order(bank: Bank) -> None:
    seen: list[list[str]] = []

    async def slow(name: str) -> str:
        await asyncio.sleep(0.002)
        return name

    @bank.app.workflow
    async def busy(ctx: Context) -> list[str]:
        order: list[str] = []

        async def steps(name: str) -> None:
            for place in (f"{name}{number}" for number in range(4)):
                done = await ctx.step(place, slow, place)
                order.append(done)

        async def deposits(name: str) -> None:
            for place in (f"{name}{number}" for number in range(4)):
                cents = await ctx.tx(place, deposit, 1)
                order.append(f"{place}={cents}")

        async def naps() -> None:
            for _ in range(3):
                await asyncio.sleep(0.001)
                order.append("nap")

        await asyncio.gather(steps("a"), deposits("t"), steps("b"), deposits("u"), naps())
        seen.append(list(order))
        await ctx.receive("go")
        seen.append(list(order))
        return order

    async with bank.open() as h:
        prepare(h)
        run = await h.start(busy)
        while (await run.info()).state is not RunState.SUSPENDED:
            await h.settle()
            await h.advance(0.01)
        await run.send("go")
        order = await run.result()
        assert balance(h) == 8
        assert all(one == order for one in seen)
        positions = [entry.position for entry in await session_of(h).store.history(run.id)]
        assert positions == list(range(1, 21))


async def test_a_transaction_starts_even_if_an_abandoned_step_ended_meanwhile(bank: Bank) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def body() -> None:
        await asyncio.to_thread(wait_for, "the transaction has begun", begun)
        asyncio.get_running_loop().call_later(0.01, ended.set)  # by then its result has arrived, and waits

    def slow(connection: Any, cents: int) -> int:
        begun.set()
        wait_for("the body has ended", ended)
        return deposit(connection, cents)

    async def deposits(ctx: Context) -> int:
        return await ctx.tx("slow", slow, 5)

    @bank.app.workflow
    async def racing(ctx: Context) -> int:
        await ctx.race("who", {"deposit": deposits, "body": lambda inner: inner.step("body", body)})
        return await ctx.tx("more", deposit, 7)

    async with bank.open() as h:
        prepare(h)
        async with guard("the run ends"):
            assert await h.execute(racing) == 12


async def test_the_step_before_a_transaction_is_committed_with_it(bank: Bank) -> None:
    """A step and the transaction after it cost one commit."""

    @bank.app.workflow
    async def save(ctx: Context) -> int:
        cents = await ctx.step("count", lambda: 5)
        await ctx.step("look", lambda: None, ephemeral=True)
        return await ctx.tx("deposit", deposit, cents)

    faults, harness = bank.open_faulty()
    async with harness as h:
        prepare(h)
        run = await h.start(save)
        assert await run.result() == 5
        assert await facts(run) == ["count step done", "look step done", "deposit tx done"]
        assert faults.calls.count("transact") == 1
        assert [name for name in faults.calls if name in ("transact", "checkpoint")][-2:] == ["transact", "checkpoint"]


async def test_a_transaction_knows_its_step(bank: Bank) -> None:
    def note(_connection: Any) -> str:
        return step_info().idempotency_key

    @bank.app.workflow
    async def save(ctx: Context) -> str:
        return await ctx.tx("note", note)

    async with bank.open() as h:
        run = await h.start(save)
        assert await run.result() == f"{run.id}:1:note"


async def test_a_transaction_that_was_undone_has_a_new_key(bank: Bank) -> None:
    keys: list[str] = []

    def note(_connection: Any) -> None:
        keys.append(step_info().idempotency_key)

    @bank.app.workflow
    async def save(ctx: Context) -> None:
        await ctx.tx("note", note, undo=lambda _: keys.append(step_info().idempotency_key))
        raise Fatal("no luck")

    async with bank.open() as h:
        run = await h.start(save)
        for _ in range(2):
            with pytest.raises(RunFailed):
                await run.result()
            await run.recover()
        tails = [key.removeprefix(f"{run.id}:1:") for key in keys]
        assert tails[:4] == ["note", "~undo/note", "note:2", "~undo/note:2"]


async def test_time_advances_with_a_transaction(bank: Bank) -> None:
    @bank.app.workflow
    async def save(ctx: Context) -> bool:
        before = ctx.now()
        await ctx.tx("deposit", deposit, 1)
        first = ctx.now()
        await ctx.sleep(60)
        return before <= first < ctx.now()

    async with bank.open() as h:
        prepare(h)
        assert await h.execute(save)


async def test_a_def_workflow_has_transactions_too(bank: Bank) -> None:
    @bank.app.workflow
    def save(ctx: SyncContext) -> list[int]:
        first = ctx.tx("deposit", deposit, 5)
        ctx.sleep(3600)
        return [first, ctx.tx("deposit", deposit, 7, retry=NOW)]

    async with bank.open() as h:
        prepare(h)
        assert await h.execute(save) == [5, 12]
        assert balance(h) == 12


# Failures


async def test_an_exception_in_a_transaction_rolls_it_back_and_it_is_retried(bank: Bank) -> None:
    def flaky(connection: Any) -> int:
        cents = deposit(connection, 5)
        if step_info().attempt < 3:
            raise OSError("busy")
        return cents

    @bank.app.workflow
    async def save(ctx: Context) -> int:
        return await ctx.tx("flaky", flaky, retry=Retry(max_attempts=3, initial=20, jitter=0))

    async with bank.open() as h:
        prepare(h)
        run = await h.start(save)
        assert await run.result() == 5
        assert balance(h) == 5
        (entry,) = await run.history()
        assert (entry.kind.value, entry.attempts) == ("tx", 3)
        retried = [fact.data["attempt"] for fact in await run.audit() if fact.event == "retried"]
        assert retried == [1, 2]


async def test_a_transaction_that_used_up_its_attempts_is_a_failed_step(bank: Bank) -> None:
    def broken(connection: Any) -> None:
        deposit(connection, 5)
        raise LookupError("nothing there")

    @bank.app.workflow
    async def save(ctx: Context) -> str:
        try:
            await ctx.tx("broken", broken, retry=NOW)
        except StepFailed as failure:
            await ctx.sleep(3600)
            return f"{failure.location} {failure.attempts} {failure.matches(LookupError)} {failure.message}"
        return "?"

    async with bank.open() as h:
        prepare(h)
        run = await h.start(save)
        assert await run.result() == "broken 3 True nothing there"
        assert balance(h) == 0
        assert (await facts(run))[0] == "broken tx failed"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda connection: connection.execute("commit"), "COMMIT is not allowed here"),
        (lambda connection: connection.execute("rollback"), "ROLLBACK is not allowed here"),
        (lambda connection: connection.execute("begin"), "BEGIN is not allowed here"),
        (lambda connection: connection.execute('release "holdfast transaction"'), "RELEASE is not allowed here"),
        (lambda connection: connection.execute("select id from run"), "'run' belongs to holdfast"),
        (lambda connection: connection.execute("update Run set state = 'failed'"), "'run' belongs to holdfast"),
        (lambda connection: connection.execute("delete from entry"), "'entry' belongs to holdfast"),
        (lambda connection: connection.execute("drop table inbox"), "'inbox' belongs to holdfast"),
        (lambda connection: connection.execute("alter table run add column x"), "'run' belongs to holdfast"),
        (lambda connection: connection.execute("create index i on run (id)"), "'run' belongs to holdfast"),
        (lambda connection: connection.execute("create temp table run (id)"), "would outlive the transaction"),
        (lambda connection: connection.execute("attach ':memory:' as other"), "another file"),
        (lambda connection: connection.execute("pragma synchronous = off"), "pragma synchronous"),
        (lambda connection: connection.close(), "ended the transaction"),
        (lambda connection: asyncio.sleep(0), "returned an awaitable"),
        (lambda connection: object(), "has no JSON form"),
        (lambda connection: "x" * 3_000_000, "the limit is"),
    ],
)
async def test_a_forbidden_statement_in_a_transaction_fails_it_at_once_and_leaves_nothing(
    tmp_path: Path, function: Callable[[apsw.Connection], Any], words: str
) -> None:
    bank = Bank(tmp_path)

    def wrong(connection: apsw.Connection) -> Any:
        deposit(connection, 5)
        return function(connection)

    @bank.app.workflow
    async def save(ctx: Context) -> str:
        await ctx.step("before", lambda: 1)
        try:
            await ctx.tx("wrong", wrong)
        except StepFailed as failure:
            return f"after {failure.attempts}: {failure.message}"
        return "it was done"

    async with bank.open() as h:
        prepare(h)
        run = await h.start(save)
        told = await run.result()
        assert words in told
        assert told.startswith("after 1: ")
        assert balance(h) == 0
        assert await facts(run) == ["before step done", "wrong tx failed"]


async def test_a_statement_that_ends_the_shared_transaction_harms_no_other_run(sqlite_bank: Bank) -> None:
    """In SQLite one statement can roll back the whole transaction; each later statement would then commit alone."""

    def wicked(connection: apsw.Connection) -> None:
        deposit(connection, 5)
        for name in ("ada", "bob"):
            try:
                connection.execute("insert or rollback into account values (?, 1)", (name,))
            except apsw.ConstraintError:
                continue

    @sqlite_bank.app.workflow
    async def save(ctx: Context, number: int) -> str:
        cents = await ctx.step("count", lambda: number)
        await ctx.tx("deposit", deposit, cents)
        if number == 3:
            try:
                await ctx.tx("wicked", wicked)
            except StepFailed as failure:
                return failure.message
        return "saved"

    async with sqlite_bank.open() as h:
        prepare(h)
        runs = [await h.start(save, number) for number in range(6)]
        results = [await run.result() for run in runs]
        assert [result == "saved" for result in results] == [True, True, True, False, True, True]
        assert "on conflict rollback" in results[3]
        assert balance(h) == 15
        with h.connection(readonly=True) as connection:
            assert connection.execute("select count(*) from account").fetchall() == [(1,)]


async def test_a_transaction_that_takes_too_long_is_a_failed_attempt(
    sqlite_bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(connection: apsw.Connection, upto: int) -> int:
        deposit(connection, 5)
        numbers = "with recursive n (i) as (select 1 union all select i + 1 from n where i < ?) select max(i) from n"
        return int(connection.execute(numbers, (upto,)).get)

    def stubborn(connection: apsw.Connection) -> None:
        deposit(connection, 5)
        time.sleep(0.16)

    @sqlite_bank.app.workflow
    async def save(ctx: Context) -> list[str]:
        told = []
        for call in (ctx.tx("count", count, 10**9, retry=NOW), ctx.tx("stubborn", stubborn, retry=NOW)):
            try:
                await call
            except StepFailed as failure:
                told.append(f"{failure.type} {failure.attempts}: {failure.message[:39]}")
        await ctx.tx("quick", count, 10)
        return told

    async with sqlite_bank.open() as h:
        prepare(h)
        with monkeypatch.context() as hasty:
            hasty.setattr(database, "LIMIT_SECONDS", 0.15)
            told = await h.execute(save)
        assert told == [
            "TimeoutError 3: the transaction took longer than 0.15 s",
            "TimeoutError 3: the transaction took longer than 0.15 s",
        ]
        assert balance(h) == 5


async def test_an_unfinished_statement_does_not_prevent_other_commits(sqlite_bank: Bank) -> None:
    kept: list[Any] = []

    def hasty(connection: apsw.Connection) -> None:
        kept.append(connection.execute("insert into account values ('bob', 1), ('eve', 2) returning name"))
        kept.append(connection.execute("select * from account"))
        if step_info().attempt == 1:
            raise OSError("again")

    @sqlite_bank.app.workflow
    async def save(ctx: Context) -> None:
        await ctx.tx("hasty", hasty, retry=NOW)

    async with sqlite_bank.open() as h:
        prepare(h)
        await h.execute(save)
        with h.connection(readonly=True) as connection:
            assert connection.execute("select name from account order by name").fetchall() == [
                ("ada",),
                ("bob",),
                ("eve",),
            ]


async def test_a_foreign_key_violated_at_the_end_fails_the_transaction_alone(bank: Bank) -> None:
    def orphan(connection: Any) -> None:
        connection.execute(
            "create table if not exists card (name text references account (name) deferrable initially deferred)"
        )
        connection.execute("insert into card values ('nobody')")

    @bank.app.workflow
    async def save(ctx: Context) -> str:
        try:
            await ctx.tx("orphan", orphan, retry=NOW)
        except StepFailed as failure:
            return failure.message
        return "?"

    async with bank.open() as h:
        prepare(h)
        assert "foreign key" in (await h.execute(save)).lower()


async def test_savepoints_inside_a_transaction_work(sqlite_bank: Bank) -> None:
    def twice(connection: apsw.Connection) -> int:
        deposit(connection, 1)
        with contextlib.suppress(apsw.ConstraintError), connection:
            deposit(connection, 2)
            connection.execute("insert into account values ('ada', 0)")
        with connection:
            deposit(connection, 4)
        return deposit(connection, 0)

    @sqlite_bank.app.workflow
    async def save(ctx: Context) -> int:
        return await ctx.tx("twice", twice)

    async with sqlite_bank.open() as h:
        prepare(h)
        assert await h.execute(save) == 5


# Invalid calls


async def coroutine_function(_connection: apsw.Connection) -> None: ...


async def async_generator_function(_connection: apsw.Connection) -> AsyncIterator[int]:
    yield 1


class AsyncObject:
    async def __call__(self, _connection: apsw.Connection) -> None: ...


@pytest.mark.parametrize(
    "function", [coroutine_function, partial(coroutine_function), async_generator_function, AsyncObject()]
)
async def test_an_async_function_is_refused_at_the_call(tmp_path: Path, function: Any) -> None:
    bank = Bank(tmp_path)

    @bank.app.workflow
    async def save(ctx: Context) -> str:
        try:
            await ctx.tx("async", function)
        except InvalidRequest as error:
            return str(error)
        return "?"

    async with bank.open() as h:
        run = await h.start(save)
        assert "is async" in await run.result()
        assert await run.history() == []


async def test_an_ephemeral_or_timed_step_cannot_be_a_transaction(tmp_path: Path) -> None:
    bank = Bank(tmp_path)

    @bank.app.step(timeout=3)
    def timed(_connection: apsw.Connection) -> None: ...

    @bank.app.workflow
    async def save(ctx: Context) -> None:
        _ = await ctx.tx("timed", timed)

    async with bank.open() as h:
        with pytest.raises(HoldfastError, match="timeout= or ephemeral="):
            await h.execute(save)


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_a_store_without_tables_refuses_before_anything_is_written(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    app = Registry()

    @app.workflow
    async def save(ctx: Context) -> None:
        await ctx.tx("deposit", deposit, 1)

    async with Stage(kind, tmp_path, url_for(kind, request)).harness(app) as h:
        run = await h.start(save)
        with pytest.raises(
            HoldfastError,
            match=r"ctx.tx\('deposit'\): this store cannot hold your tables, .* on Redis or in memory, a step",
        ):
            await run.result()
        assert await run.history() == []
        with pytest.raises(InvalidRequest, match="cannot hold your tables"):
            h.connection()
        with pytest.raises(InvalidRequest, match="cannot hold your tables"):
            await h.start_in(object(), save)


async def test_a_stub_replaces_a_transaction(bank: Bank) -> None:
    @bank.app.workflow
    async def save(ctx: Context) -> int:
        return await ctx.tx("deposit", deposit, 1)

    async with bank.open() as h:
        h.stub("deposit", returns=99)
        assert await h.execute(save) == 99


async def test_a_run_that_rolls_back_undoes_its_transactions_in_reverse_order(bank: Bank) -> None:
    undone: list[int] = []

    @bank.app.workflow
    async def save(ctx: Context) -> None:
        await ctx.tx("deposit", deposit, 1, undo=undone.append)
        await ctx.tx("deposit", deposit, 2, undo=undone.append)
        raise LookupError("after all")

    async with bank.open() as h:
        prepare(h)
        run = await h.start(save)
        with pytest.raises(RunFailed, match="after all"):
            await run.result()
        assert undone == [3, 1]
        assert (await facts(run))[:2] == ["deposit tx done", "deposit#2 tx done"]


# Workers that come and go


async def test_a_transaction_of_a_worker_that_lost_its_lease_leaves_no_trace(tmp_path: Path) -> None:
    bank = Bank(tmp_path)

    @bank.app.workflow
    async def save(ctx: Context) -> int:
        return await ctx.tx("deposit", deposit, 5)

    faults, harness = bank.open_faulty()
    async with harness as h, bank.open() as other:
        await other.stop_worker()
        prepare(h)
        faults.freeze("transact")
        run = await h.start(save)
        await guarded("the worker is frozen", faults.frozen.wait())
        bank.clock.pass_to(bank.clock.now() + 31_000_000)
        await other.start_worker()
        assert await other.run(run.id).result() == 5
        faults.thaw()
        await h.settle()
        assert balance(h) == 5
        assert await facts(run) == ["deposit tx done"]


async def test_a_shutdown_waits_for_a_transaction_and_loses_nothing(bank: Bank) -> None:
    @bank.app.workflow
    async def save(ctx: Context) -> int:
        first = await ctx.tx("deposit", deposit, 5)
        return first + await ctx.tx("deposit", deposit, 5)

    faults, harness = bank.open_faulty()
    async with harness as h:
        prepare(h)
        under_way, may_go_on = asyncio.Event(), asyncio.Event()

        async def linger() -> None:
            under_way.set()
            await may_go_on.wait()

        faults.interpose("transact", linger, when="after")
        run = await h.start(save)
        await guarded("the transaction is under way", under_way.wait())
        worker = h._worker
        assert worker is not None
        stopping = asyncio.create_task(h.stop_worker())
        await until("the worker is draining", lambda: worker.is_draining)
        may_go_on.set()
        await stopping
        assert balance(h) == 5
        assert (await run.info()).state is RunState.PENDING
        await h.start_worker()
        assert await run.result() == 15
        assert balance(h) == 10


async def test_a_result_that_comes_while_a_transaction_is_under_way_is_not_lost(bank: Bank) -> None:
    @bank.app.workflow
    async def save(ctx: Context) -> list[int]:
        return list(
            await asyncio.gather(
                ctx.tx("deposit", deposit, 5),
                ctx.step("a", lambda: 1),
                ctx.step("b", lambda: 2),
                ctx.receive("word", type=int),
            )
        )

    faults, harness = bank.open_faulty()
    async with harness as h:
        prepare(h)
        faults.interpose("transact", lambda: asyncio.sleep(0.03), when="after")
        run = await h.start(save)
        await run.send("word", 3)
        assert await run.result() == [5, 1, 2, 3]
        assert "deposit tx done" in await facts(run)


async def test_a_run_cancelled_while_its_transaction_is_under_way_stays_cancelled(bank: Bank) -> None:
    @bank.app.workflow
    async def save(ctx: Context) -> None:
        await ctx.tx("deposit", deposit, 5)
        await ctx.receive("never")

    faults, harness = bank.open_faulty()
    async with harness as h:
        prepare(h)
        run = h.run("the-run")
        faults.interpose("transact", lambda: run.cancel("enough"), when="before")
        await h.start(save, id="the-run")
        await h.settle()
        assert (await run.info()).state is RunState.CANCELLED
        assert balance(h) == 0


async def test_fatal_fails_a_transaction_at_once(bank: Bank) -> None:
    def never(connection: apsw.Connection) -> None:
        deposit(connection, 5)
        raise Fatal("never")

    @bank.app.workflow
    async def save(ctx: Context) -> None:
        await ctx.tx("never", never)

    async with bank.open() as h:
        prepare(h)
        run = await h.start(save)
        with pytest.raises(RunFailed, match="never"):
            await run.result()
        assert h.executed == ["never"]
