"""Sessions: jobs on their own connections, repeated when that helps, and failing at once when it does not."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast.core.errors import KeyConflict, StoreUnavailable
from holdfast.stores.postgres import connections
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import Connection, Connector, SessionLimits, connect
from holdfast.stores.postgres.sessions import CONFLICT_LIMIT, Sessions
from holdfast.testing.patience import GUARD_SECONDS, until, wait_for
from tests.postgres import PostgresProxy, PostgresServer

Some = psycopg.Connection[Any]


def one(connection: Some, statement: str = "select 1") -> Any:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def backend(connection: Some) -> int:
    return int(one(connection, "select pg_backend_pid()"))


def failing(times: int, code: str, job: Callable[[Some], Any] = one) -> Callable[[Some], Any]:
    """A job that fails with this server error a given number of times before it works."""
    left = [times]

    def fail(connection: Some) -> Any:
        if left[0]:
            left[0] -= 1
            connection.execute(f"do $$ begin raise exception 'so it goes' using errcode = '{code}'; end $$".encode())
        return job(connection)

    return fail


# Executing jobs


async def test_a_job_is_answered_on_the_loop_of_its_caller(sessions: Sessions) -> None:
    assert await sessions.run(lambda connection: one(connection, "select 6 * 7")) == 42


async def test_a_single_caller_uses_one_connection(sessions: Sessions) -> None:
    backends = {await sessions.run(backend) for _ in range(50)}

    assert len(backends) == 1


async def test_jobs_run_concurrently_up_to_the_size(sessions: Sessions) -> None:
    both = threading.Barrier(2, timeout=GUARD_SECONDS)

    def meet(connection: Some) -> int:
        both.wait()
        return backend(connection)

    backends = await asyncio.gather(*(sessions.run(meet) for _ in range(4)))

    assert len(set(backends)) == 2


async def test_waiting_jobs_are_executed_in_order(far: PostgresAddress) -> None:
    lone = Sessions(far, "lone", 1)
    lone.start()
    done: list[int] = []

    def note(number: int) -> Callable[[Some], None]:
        return lambda _: done.append(number)

    await asyncio.gather(*(lone.run(note(number)) for number in range(20)))

    assert done == list(range(20))
    lone.stop()


def test_a_thread_may_block_for_its_answer(sessions: Sessions) -> None:
    assert sessions.run_blocking(one) == 1
    with pytest.raises(KeyError):
        sessions.run_blocking(lambda _: os.environ["HOLDFAST_NOTHING"])


async def test_an_exception_of_a_job_reaches_its_caller_unchanged(sessions: Sessions) -> None:
    def refuse(_: Some) -> None:
        raise KeyConflict("taken", run_id="r")

    with pytest.raises(KeyConflict, match="taken"):
        await sessions.run(refuse)
    with pytest.raises(RuntimeError, match="StopIteration"):  # a future cannot carry it
        await sessions.run(lambda _: next(iter(())))


async def test_a_transaction_that_a_job_left_open_is_rolled_back(sessions: Sessions, observer: Connection) -> None:
    observer.execute("create table things (n int)")

    def leave(connection: Some) -> int:
        connection.autocommit = False
        connection.execute("insert into things values (1)")
        return backend(connection)

    used = await sessions.run(leave)

    assert await sessions.run(lambda connection: (backend(connection), connection.autocommit)) == (used, True)
    assert observer.execute("select count(*) from things").fetchone() == (0,)


async def test_a_job_whose_caller_stopped_waiting_is_not_executed(far: PostgresAddress) -> None:
    lone = Sessions(far, "lone", 1)
    lone.start()
    done: list[str] = []
    may_go = threading.Event()
    first = lone.run(lambda _: may_go.wait(GUARD_SECONDS))
    second = lone.run(lambda _: done.append("second"))
    third = lone.run(lambda _: done.append("third"))

    second.cancel()
    may_go.set()
    await asyncio.gather(first, third)

    assert done == ["third"]
    lone.stop()


def test_a_closed_loop_of_a_caller_does_no_harm(sessions: Sessions) -> None:
    may_go = threading.Event()

    async def ask() -> None:
        sessions.run(lambda _: may_go.wait(GUARD_SECONDS))
        await asyncio.sleep(0)

    asyncio.run(ask())
    may_go.set()

    assert sessions.run_blocking(one) == 1


async def test_nothing_of_a_caller_is_kept_when_its_job_is_done(sessions: Sessions) -> None:
    class Big:
        alive = 0

        def __init__(self) -> None:
            Big.alive += 1

        def __del__(self) -> None:
            Big.alive -= 1

    big = Big()
    await sessions.run(lambda _, big=big: big)  # type: ignore[misc]
    del big
    await sessions.run(one)

    gc.collect()
    assert Big.alive == 0


# Repeating


@pytest.mark.parametrize("code", ["40P01", "40001"])
async def test_a_conflict_is_repeated(sessions: Sessions, code: str) -> None:
    assert await sessions.run(failing(CONFLICT_LIMIT, code)) == 1


async def test_a_conflict_is_not_repeated_for_ever(sessions: Sessions) -> None:
    with pytest.raises(StoreUnavailable, match="because of other transactions"):
        await sessions.run(failing(CONFLICT_LIMIT + 1, "40001"))


async def test_a_real_deadlock_is_resolved_by_repetition(sessions: Sessions, observer: Connection) -> None:
    observer.execute("create table things (n int primary key, value int)")
    observer.execute("insert into things values (1, 0), (2, 0)")
    both = threading.Barrier(2)
    met: set[int] = set()

    def cross(first: int, second: int) -> Callable[[Some], None]:
        def job(connection: Some) -> None:
            with connection.transaction():
                connection.execute("update things set value = value + 1 where n = %s", (first,))
                if first not in met:  # not in the repetition
                    met.add(first)
                    both.wait(GUARD_SECONDS)
                connection.execute("update things set value = value + 1 where n = %s", (second,))

        return job

    await asyncio.gather(sessions.run(cross(1, 2)), sessions.run(cross(2, 1)))

    assert observer.execute("select n, value from things order by n").fetchall() == [(1, 2), (2, 2)]


async def test_a_terminated_backend_is_invisible_to_the_caller(
    sessions: Sessions, observer: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.store")
    used = await sessions.run(backend)

    observer.execute("select pg_terminate_backend(%s, 20000)", (used,))

    assert await sessions.run(backend) != used
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "lost the database, connecting again",
        "the database is back",
    ]


async def test_a_cut_during_the_answer_is_invisible_to_the_caller(sessions: Sessions, proxy: PostgresProxy) -> None:
    began = threading.Event()
    attempts: list[int] = []

    def job(connection: Some) -> int:
        attempts.append(backend(connection))
        began.set()
        connection.execute(b"select pg_sleep(%d)" % (20 if len(attempts) == 1 else 0))
        return len(attempts)

    answer = sessions.run(job)
    await asyncio.to_thread(wait_for, "the job has begun", began)
    await asyncio.sleep(0.1)
    proxy.cut()

    assert await answer == 2


async def test_a_job_that_may_have_been_executed_is_repeated_by_its_own_check(
    sessions: Sessions, proxy: PostgresProxy, observer: Connection
) -> None:
    observer.execute("create table things (n int)")
    lost = proxy.cut_around_commit("insert into things", before=False)

    def insert(connection: Some) -> str:
        connection.execute("insert into things values (1)")
        return "inserted"

    def look(connection: Some) -> str:
        count = one(connection, "select count(*) from things")
        return f"found {count}"

    assert await sessions.run(insert, again=look) == "found 1"
    lost.wait()


async def test_a_cancelled_statement_is_repeated(sessions: Sessions, observer: Connection) -> None:
    assert await sessions.run(failing(1, "57014")) == 1


async def test_a_statement_beyond_its_time_limit_fails_with_the_name_of_the_setting(far: PostgresAddress) -> None:
    hasty = Sessions(far, "hasty", 1, limits=SessionLimits(statement_seconds=1))
    hasty.start()
    attempts: list[int] = []

    def dawdle(connection: Some) -> None:
        attempts.append(backend(connection))
        connection.execute("select pg_sleep(20)")

    with pytest.raises(StoreUnavailable, match="statement_timeout"):
        await hasty.run(dawdle)

    assert len(attempts) == 1
    assert await hasty.run(backend) == attempts[0]  # the connection is still good
    hasty.stop()


# Outages


async def test_callers_fail_at_once_while_the_server_is_away_and_retries_are_limited(
    sessions: Sessions, proxy: PostgresProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "holdfast.store")
    await sessions.run(one)
    attempts: list[PostgresAddress] = []

    def attempt(address: PostgresAddress, limits: SessionLimits) -> Connection:
        attempts.append(address)
        return connect(address, limits)

    monkeypatch.setattr(connections, "connect", attempt)
    proxy.refuse()
    proxy.cut()

    began = time.monotonic()
    answers = await asyncio.gather(*(sessions.run(one) for _ in range(200)), return_exceptions=True)
    seconds = time.monotonic() - began

    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert "no server listens there" in str(answers[-1])
    assert len(attempts) <= 4 + seconds / connections.FIRST_PAUSE_SECONDS
    assert [record.message.partition(":")[0] for record in caplog.records] == ["lost the database, connecting again"]


async def test_a_server_that_comes_back_is_found_again(
    sessions: Sessions, proxy: PostgresProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.store")
    both = threading.Barrier(2, timeout=GUARD_SECONDS)
    await asyncio.gather(*(sessions.run(lambda _: both.wait()) for _ in range(2)))
    proxy.refuse()
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        await sessions.run(one)
    proxy.heal()

    answer = None
    while answer is None:
        try:
            answer = await sessions.run(one)
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    await asyncio.gather(*(sessions.run(lambda _: both.wait()) for _ in range(2)))

    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "lost the database, connecting again",
        "the database is back",
    ]


async def test_a_restart_of_the_server_is_survived(postgres_server: PostgresServer) -> None:
    sessions = Sessions(PostgresAddress.of(postgres_server.url), "test", 2)
    sessions.start()
    before = await sessions.run(backend)

    await asyncio.to_thread(postgres_server.restart)

    after = None
    while after is None:
        try:
            after = await sessions.run(backend)
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    assert after != before
    sessions.stop()


async def test_sessions_give_up_a_server_that_does_not_answer_within_the_limits(
    far: PostgresAddress, proxy: PostgresProxy
) -> None:
    sessions = Sessions(far, "test", 1)
    sessions.start()
    await sessions.run(one)
    proxy.black_hole()

    def impatient(connection: Some) -> Any:
        assert isinstance(connection, Connection)
        connection.answer_seconds = 0.3
        return one(connection)

    answer = sessions.run(impatient)
    await asyncio.sleep(0.5)
    proxy.heal()

    assert await answer == 1
    sessions.stop()


def test_an_outage_before_the_first_connection_is_raised_to_the_opener(
    address: PostgresAddress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.store")
    nowhere = PostgresAddress.of("postgresql://127.0.0.1:1/nowhere")

    with pytest.raises(StoreUnavailable, match="no server listens there"):
        Connector(nowhere).connect()

    assert caplog.records == []


# Ending


async def test_pending_jobs_are_executed_before_the_end(far: PostgresAddress, observer: Connection) -> None:
    observer.execute("create table things (n int)")
    sessions = Sessions(far, "test", 1)
    sessions.start()
    answers = [
        sessions.run(lambda connection: one(connection, "insert into things values (1) returning n")) for _ in range(20)
    ]

    await asyncio.to_thread(sessions.stop)

    assert await asyncio.gather(*answers) == [1] * 20
    assert observer.execute("select count(*) from things").fetchone() == (20,)
    with pytest.raises(StoreUnavailable, match="is closed; open it first"):
        sessions.run(one)


async def test_closing_waits_for_a_limited_time_only(far: PostgresAddress, proxy: PostgresProxy) -> None:
    sessions = Sessions(far, "test", 1)
    sessions.start()
    await sessions.run(one)
    proxy.black_hole()
    stuck, queued = sessions.run(one), sessions.run(one)

    await asyncio.to_thread(sessions.stop, 0.2)

    for answer in (stuck, queued):
        with pytest.raises(StoreUnavailable):
            await answer
    await until("its threads have ended", lambda: not any(map(is_of_test, threading.enumerate())))


def is_of_test(thread: threading.Thread) -> bool:
    return thread.name.startswith("holdfast-postgres-test")


def test_connections_are_closed_at_the_end(far: PostgresAddress, observer: Connection) -> None:
    sessions = Sessions(far, "test", 1)
    sessions.start()
    used = sessions.run_blocking(backend)

    sessions.stop()

    while observer.execute("select 1 from pg_stat_activity where pid = %s", (used,)).fetchone() is not None:
        time.sleep(0.02)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_session_connections_of_its_parent_alone(far: PostgresAddress) -> None:
    sessions = Sessions(far, "test", 1)
    sessions.start()
    used = sessions.run_blocking(backend)

    child = os.fork()
    if not child:
        status = 1
        try:
            sessions.abandon()
            sessions.stop()
            with pytest.raises(StoreUnavailable):
                sessions.run_blocking(one)
            del sessions
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert sessions.run_blocking(backend) == used
    sessions.stop()


_PARENT_THAT_DIES = """
import os, signal, sys
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.sessions import Sessions

sessions = Sessions(PostgresAddress.of(sys.argv[1]), "test", 1)
sessions.start()
used = sessions.run_blocking(lambda connection: connection.info.backend_pid)
parent = os.getpid()
if not os.fork():
    sessions.abandon()
    print(used, flush=True)
    os.kill(parent, signal.SIGKILL)
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""


def test_a_surviving_child_does_not_keep_the_connections_of_its_dead_parent_open(
    postgres_url: str, observer: Connection
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT_THAT_DIES, postgres_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        used = int(parent.stdout.readline())

        while observer.execute("select 1 from pg_stat_activity where pid = %s", (used,)).fetchone() is not None:
            time.sleep(0.02)
