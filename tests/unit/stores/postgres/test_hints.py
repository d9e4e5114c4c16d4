"""Hints: listeners in this and other processes get them, and a broken connection is repaired."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.core.news import Hint
from holdfast.stores.postgres import hints as hints_module
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.hints import Hints
from holdfast.testing.patience import GUARD_SECONDS, guarded, until
from tests.postgres import PostgresProxy

READY = Hint(ready=frozenset({"order"}))
LAST = Hint(ready=frozenset({"last"}))
LOOK = Hint(is_elsewhere=True)


class Ear:
    """A listener that collects hints."""

    def __init__(self, hints: Hints) -> None:
        self.heard: asyncio.Queue[Hint] = asyncio.Queue()
        self.leave = hints.listen(self.heard.put_nowait)

    async def next(self) -> Hint:
        return await guarded("a hint comes", self.heard.get())

    def drain(self) -> list[Hint]:
        return [self.heard.get_nowait() for _ in range(self.heard.qsize())]


@asynccontextmanager
async def ringing(address: PostgresAddress, **options: Any) -> AsyncIterator[Hints]:
    """Hints as another process would have them."""
    hints = Hints(address, **options)
    hints.start()
    try:
        yield hints
    finally:
        await asyncio.to_thread(hints.stop, GUARD_SECONDS)


def listening(observer: Connection) -> int:
    row = observer.execute(
        "select count(*) from pg_stat_activity where query ilike 'listen%' and datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def connected(observer: Connection) -> Iterator[int]:
    return (
        pid
        for (pid,) in observer.execute(
            "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
            "and application_name = 'holdfast'"  # without the sessions of the test harness
        )
    )


# In one process


async def test_a_listener_gets_hints_until_it_leaves(address: PostgresAddress) -> None:
    hints = Hints(address)
    gone, still = Ear(hints), Ear(hints)
    gone.leave()
    gone.leave()

    hints.send(READY)

    assert await still.next() == READY
    assert gone.drain() == []


async def test_a_listener_that_raises_does_not_affect_the_others(address: PostgresAddress) -> None:
    hints = Hints(address)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def raising(_: Hint) -> None:
        raise RuntimeError("mine")

    hints.listen(raising)
    ear = Ear(hints)

    hints.send(READY)

    assert await ear.next() == READY


async def test_a_hint_from_any_thread_is_delivered_on_the_loop(address: PostgresAddress) -> None:
    hints = Hints(address)
    heard: asyncio.Future[asyncio.AbstractEventLoop] = asyncio.get_running_loop().create_future()
    hints.listen(lambda _: heard.set_result(asyncio.get_running_loop()))

    threading.Thread(target=hints.send, args=(READY,)).start()

    assert await heard is asyncio.get_running_loop()


async def test_a_closed_loop_is_removed_from_the_listeners(address: PostgresAddress) -> None:
    async def listen() -> None:
        hints.listen(print)

    hints = Hints(address)
    await asyncio.to_thread(asyncio.run, listen())

    hints.send(READY)

    assert hints._loops == {}


# From process to process


async def test_other_processes_get_a_hint_about_ready_runs(address: PostgresAddress) -> None:
    async with ringing(address) as here, ringing(address) as there:
        ear = Ear(there)
        assert await ear.next() == LOOK  # it listens now; something may have happened before

        here.wake(READY)

        assert await ear.next() == replace(READY, is_foreign=True)


async def test_other_processes_get_a_hint_about_each_run_that_ended(address: PostgresAddress) -> None:
    async with ringing(address) as here, ringing(address) as there:
        ear = Ear(there)
        await ear.next()
        runs = {f"run-{number}" for number in range(20)}

        for run_id in runs:
            here.wake(Hint(ended=frozenset({run_id})))

        ended: set[str] = set()
        while ended != runs:
            hint = await ear.next()
            assert hint == Hint(ended=hint.ended, is_foreign=True)
            ended |= hint.ended


async def test_a_hint_about_anything_reaches_other_processes_with_the_others(address: PostgresAddress) -> None:
    async with ringing(address) as here, ringing(address) as there:
        ear = Ear(there)
        await ear.next()

        here.wake(READY)
        here.wake_all()
        here.wake(LAST)

        heard = [await ear.next()]
        while LOOK not in heard:
            heard.append(await ear.next())


async def test_a_process_does_not_get_its_own_hints(address: PostgresAddress, observer: Connection) -> None:
    async with ringing(address) as hints:
        ear = Ear(hints)
        await ear.next()

        hints.wake(READY)
        observer.execute("notify holdfast")  # after it, by another process

        assert await ear.next() == LOOK


async def test_a_hint_that_is_too_long_says_only_that_something_changed(address: PostgresAddress) -> None:
    async with ringing(address) as here, ringing(address) as there:
        ear = Ear(there)
        await ear.next()

        here.wake(Hint(ready=frozenset(f"type-number-{number}" for number in range(1_000))))

        assert await ear.next() == LOOK


async def test_schemas_do_not_get_hints_of_each_other(postgres_url: str) -> None:
    joint = "&" if "?" in postgres_url else "?"
    here, there = PostgresAddress.of(postgres_url), PostgresAddress.of(f"{postgres_url}{joint}schema=other")
    async with ringing(here) as mine, ringing(there) as theirs, ringing(there) as also_theirs:
        ear = Ear(theirs)
        await ear.next()

        mine.wake(READY)
        await asyncio.to_thread(mine.stop)
        also_theirs.wake(LAST)

        assert await ear.next() == replace(LAST, is_foreign=True)


async def test_a_stream_of_hints_is_reduced_to_a_hundred_a_second(address: PostgresAddress) -> None:
    async with ringing(address) as here, ringing(address) as there, ringing(address) as last:
        ear = Ear(there)
        await ear.next()

        began = time.monotonic()
        for number in range(2_000):
            here.wake(Hint(ready=frozenset({f"type-{number % 7}"})))
            await asyncio.sleep(0)
        await asyncio.to_thread(here.stop, GUARD_SECONDS)  # the end sends the rest
        seconds = time.monotonic() - began
        last.wake(LAST)

        heard = [await ear.next()]
        while "last" not in heard[-1].ready:
            heard.append(await ear.next())
        assert len(heard) <= seconds * 100 + 4
        assert frozenset().union(*(hint.ready for hint in heard)) == {f"type-{number}" for number in range(7)} | {
            "last"
        }


async def test_the_last_hints_are_sent_before_the_end(address: PostgresAddress) -> None:
    async with ringing(address) as there:
        ear = Ear(there)
        await ear.next()

        async with ringing(address) as here:
            here.wake(READY)  # it has no connection yet

        assert await ear.next() == replace(READY, is_foreign=True)


async def test_the_server_connection_exists_only_while_there_are_listeners(
    address: PostgresAddress, observer: Connection
) -> None:
    async with ringing(address) as hints:
        assert list(connected(observer)) == []
        first, second = Ear(hints), Ear(hints)
        await first.next()
        assert listening(observer) == 1

        first.leave()
        second.leave()

        while listening(observer):
            await asyncio.sleep(0.02)


async def test_a_listener_from_before_the_start_gets_hints_after_it(address: PostgresAddress) -> None:
    hints = Hints(address)
    ear = Ear(hints)

    hints.start()

    assert await ear.next() == LOOK
    await asyncio.to_thread(hints.stop)


# Failures


async def test_a_cut_connection_is_replaced_and_listeners_query_for_what_they_missed(
    far: PostgresAddress, proxy: PostgresProxy, address: PostgresAddress
) -> None:
    async with ringing(far) as far_away, ringing(address) as here:
        ear = Ear(far_away)
        await ear.next()

        proxy.cut()

        assert await ear.next() == LOOK
        here.wake(READY)
        assert await ear.next() == replace(READY, is_foreign=True)


async def test_a_connection_that_is_dead_without_notice_is_replaced(
    far: PostgresAddress, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ringing(far, ping_seconds=0.2) as hints:
        ear = Ear(hints)
        await ear.next()
        line = hints._notifications
        assert line is not None
        assert line._connection is not None
        line._connection.answer_seconds = 0.3
        proxy.black_hole()
        await until("a ping went unanswered", lambda: not line._is_listening)

        proxy.heal()

        assert await ear.next() == LOOK


async def test_a_new_connection_that_cannot_be_prepared_is_closed(
    address: PostgresAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[Connection] = []
    execute = Connection.execute

    def refuse_first(connection: Connection, query: Any, *given: Any, **named: Any) -> Any:
        if query == "set synchronous_commit = off" and not refused:
            refused.append(connection)
            raise psycopg.errors.QueryCanceled("too slow")
        return execute(connection, query, *given, **named)

    monkeypatch.setattr(Connection, "execute", refuse_first)
    async with ringing(address) as hints:
        ear = Ear(hints)
        assert await ear.next() == LOOK

    assert [connection.closed for connection in refused] == [True]


async def test_an_unreachable_server_is_logged_once(
    far: PostgresAddress, proxy: PostgresProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.store")
    async with ringing(far) as hints:
        ear = Ear(hints)
        await ear.next()
        proxy.refuse()
        proxy.cut()
        hints.wake(READY)
        await until("the outage is noticed", lambda: "lost the database" in caplog.text)
        await asyncio.sleep(1.5)  # it is retried during this time, and not logged again

        proxy.heal()

        assert await ear.next() == LOOK
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "lost the database, connecting again",
        "the database is back",
    ]


async def test_the_end_does_not_wait_for_a_server_that_does_not_answer(
    far: PostgresAddress, proxy: PostgresProxy
) -> None:
    hints = Hints(far)
    hints.start()
    ear = Ear(hints)
    await ear.next()
    proxy.black_hole()
    hints.wake(READY)
    assert hints._notifications is not None
    thread = hints._notifications._thread
    assert thread is not None

    await asyncio.to_thread(hints.stop, 0.2)

    await until("the thread of the line has ended", lambda: not thread.is_alive())


# Without hints


async def test_without_hints_there_is_no_connection_and_listeners_poll_at_growing_intervals(
    postgres_url: str, observer: Connection
) -> None:
    joint = "&" if "?" in postgres_url else "?"
    async with ringing(PostgresAddress.of(f"{postgres_url}{joint}hints=off")) as hints:
        ear = Ear(hints)
        (listeners,) = hints._loops.values()
        intervals = []
        for _ in range(6):
            assert await ear.next() == LOOK
            intervals.append(listeners._interval)
        hints.wake(READY)

        assert list(connected(observer)) == []
        assert intervals[-1] > 2 * intervals[0]
        ear.leave()


async def test_without_hints_a_local_change_makes_listeners_poll_soon(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints_module, "POLL_GROWTH", 1_000)
    monkeypatch.setattr(hints_module, "LAST_POLL_SECONDS", 1_000)
    joint = "&" if "?" in postgres_url else "?"
    async with ringing(PostgresAddress.of(f"{postgres_url}{joint}hints=off")) as hints:
        ear = Ear(hints)
        await ear.next()  # the next poll would be in a thousand seconds

        hints.send(READY)

        assert await ear.next() == READY
        assert await ear.next() == LOOK
        ear.leave()


async def test_without_hints_an_idle_listener_polls_less_than_once_a_second() -> None:
    assert hints_module.LAST_POLL_SECONDS > 1


# Forks


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
async def test_a_forked_child_leaves_the_hint_connection_of_its_parent_alone(address: PostgresAddress) -> None:
    async with ringing(address) as here, ringing(address) as there:
        ear = Ear(there)
        await ear.next()

        child = os.fork()
        if not child:
            for hints in (here, there):
                hints.abandon()
                hints.wake(READY)
                hints.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

        here.wake(READY)
        assert await ear.next() == replace(READY, is_foreign=True)
