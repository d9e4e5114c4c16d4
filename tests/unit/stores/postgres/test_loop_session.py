"""The session of the event loop: scripts without threads, and fallback sessions for errors and repetitions."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast.core.errors import InvalidRequest, SchemaOutOfDate, StoreUnavailable
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import Connection, Connector, SessionLimits
from holdfast.stores.postgres.loop_session import ARGUMENTS_LIMIT_CHARACTERS, LoopSession
from holdfast.stores.postgres.scripts import Script, pipelined
from holdfast.stores.postgres.sessions import Sessions
from holdfast.stores.postgres.unit_of_work import TRANSACTION
from holdfast.testing.patience import GUARD_SECONDS
from tests.postgres import PostgresProxy

BACKEND = "select pg_backend_pid()"


def said(statement: str, *arguments: object) -> Callable[[], Script[Any]]:
    """A script of one statement."""

    def script() -> Script[Any]:
        return (yield statement.encode(), arguments)

    return script


@pytest_asyncio.fixture
async def session(connector: Connector, sessions: Sessions) -> AsyncIterator[LoopSession]:
    """An open session."""
    session = LoopSession(connector, sessions)
    await connected(session)
    yield session
    await session.stop()


async def connected(session: LoopSession) -> None:
    """Wait until scripts use the connection of the loop."""
    while session._connection is None:
        await session.run(said("select '1'"))
        await asyncio.sleep(0.01)


async def test_a_statement_gives_back_its_one_value(session: LoopSession) -> None:
    assert await session.run(said("select %s::text || %s::text", "é✓", '{"a": 1}')) == 'é✓{"a": 1}'
    assert await session.run(said("select %s::bigint + 1", 41)) == 42
    assert await session.run(said("select not %s::boolean", False)) is True  # noqa: FBT003 - an argument of the statement
    assert await session.run(said("select %s::text", None)) is None
    assert await session.run(said("select 'nothing' where false")) is None


async def test_statements_in_a_chain_make_one_round_trip_and_return_the_last_value(session: LoopSession) -> None:
    hostile = 'it\'s \\ "é✓" $1 %s; drop table x --'

    def script() -> Script[Any]:
        first = yield pipelined((b"begin", ()), (b"select %s::text || %s::text", (hostile, 5)))
        second = yield pipelined((b"select %s::bigint is null and %s", (None, True)), (b"commit", ()))
        return first, second

    assert await session.run(script) == (hostile + "5", True)


async def test_statements_after_a_failed_one_in_a_chain_are_not_executed(
    session: LoopSession, observer: Connection
) -> None:
    observer.execute("create table things (name text)")

    def script() -> Script[Any]:
        yield b"insert into things values ('before')", ()
        yield pipelined((b"select 1 / %s", (0,)), TRANSACTION.commit)

    with pytest.raises(Exception, match="division by zero"):
        await session.run(lambda: TRANSACTION.around(script(), is_committing=True))

    assert await session.run(said("select count(*) from things")) == 0


@pytest.mark.parametrize("value", ["x\0tail", "\ud800"])
async def test_text_that_cannot_be_stored_is_refused_and_its_transaction_rolled_back(
    session: LoopSession, observer: Connection, value: str
) -> None:
    observer.execute("create table things (name text)")

    def script() -> Script[Any]:
        yield b"insert into things values ('before')", ()
        return (yield b"insert into things values (%s)", (value,))

    with pytest.raises(InvalidRequest, match="a value cannot be stored in Postgres"):
        await session.run(lambda: TRANSACTION.around(script()))

    assert await session.run(said("select count(*) from things")) == 0


async def test_scripts_one_after_the_other_share_a_connection(session: LoopSession, sessions: Sessions) -> None:
    backends = {await session.run(said(BACKEND)) for _ in range(20)}
    others = {await sessions.run(lambda connection: connection.info.backend_pid)}

    assert len(backends) == 1
    assert backends.isdisjoint(others)


async def test_statements_are_prepared_once(session: LoopSession) -> None:
    statement = "select count(*)::text from pg_prepared_statements"

    assert [await session.run(said(statement)) for _ in range(3)] == ["1"] * 3


async def test_concurrent_scripts_are_all_answered(session: LoopSession) -> None:
    answers = await asyncio.gather(*(session.run(said("select %s::text", str(number))) for number in range(100)))

    assert answers == [str(number) for number in range(100)]


@pytest.mark.parametrize("size", [ARGUMENTS_LIMIT_CHARACTERS, 8 * 1024 * 1024])
async def test_long_values_are_transferred(session: LoopSession, size: int) -> None:
    value = "x" * size

    assert await session.run(said("select %s::text", value)) == value


async def test_the_loop_continues_while_an_answer_is_awaited(session: LoopSession, observer: Connection) -> None:
    observer.execute("select pg_advisory_lock(1)")
    answer = session.run(said("select pg_advisory_lock(1)::text || 'done'"))

    for _ in range(10):
        await asyncio.sleep(0.001)
    assert not answer.done()
    observer.execute("select pg_advisory_unlock(1)")

    assert await answer == "done"


async def test_an_error_is_raised_and_the_connection_used_again(session: LoopSession) -> None:
    before = await session.run(said(BACKEND))

    with pytest.raises(SchemaOutOfDate, match="holdfast migrate"):
        await session.run(said("select holdfast.missing(%s)", ""))

    assert await session.run(said(BACKEND)) == before


async def test_a_script_of_several_round_trips_stays_on_one_connection(
    session: LoopSession, observer: Connection
) -> None:
    observer.execute("create table things (n int)")

    def script() -> Script[list[Any]]:
        heard = [(yield b"begin", ())]
        heard.append((yield b"insert into things values (%s) returning n", (7,)))
        heard.append((yield b"select count(*) from things", ()))
        heard.append((yield b"commit", ()))
        return heard

    assert await session.run(script) == [None, 7, 1, None]
    assert observer.execute("select n from things").fetchall() == [(7,)]


async def test_an_error_is_raised_at_its_statement_in_the_script(session: LoopSession) -> None:
    def script() -> Script[str]:
        try:
            yield b"select 1 / %s::int", (0,)
        except psycopg.errors.DivisionByZero:
            return str((yield b"select 'never mind'", ()))
        return "no error"

    assert await session.run(script) == "never mind"


async def test_a_transaction_that_is_left_open_is_rolled_back(session: LoopSession, observer: Connection) -> None:
    observer.execute("create table things (n int)")

    def script() -> Script[int]:
        yield b"begin", ()
        backend: int = yield b"insert into things values (1) returning pg_backend_pid()", ()
        if backend:
            raise KeyError("mine")
        return backend

    before = await session.run(said(BACKEND))
    with pytest.raises(KeyError, match="mine"):
        await session.run(script)

    while session._job is not None:
        await asyncio.sleep(0.01)
    assert await session.run(said(BACKEND)) == before
    assert observer.execute("select count(*) from things").fetchone() == (0,)


async def test_a_cancelled_caller_leaves_the_session_usable(session: LoopSession) -> None:
    call = session.run(said("select pg_sleep(0.2)::text"))
    await asyncio.sleep(0.05)

    call.cancel()

    for number in range(30):
        assert await session.run(said("select %s::text", str(number))) == str(number)
        await asyncio.sleep(0.01)


async def test_cancelling_all_tasks_of_the_loop_does_not_disturb_the_session(session: LoopSession) -> None:
    before = await session.run(said(BACKEND))
    answer = session.run(said("select pg_sleep(0.1)::text || 'done'"))

    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()

    assert await answer == "done"
    assert await session.run(said(BACKEND)) == before


async def test_a_conflict_is_repeated_by_the_fallback_sessions(session: LoopSession, observer: Connection) -> None:
    observer.execute("create sequence attempts")
    observer.execute(
        """create function contested() returns text language plpgsql as $$
        begin
            if nextval('attempts') < 4 then
                raise exception 'so it goes' using errcode = '40P01';
            end if;
            return 'done';
        end $$"""
    )

    assert await session.run(said("select contested()")) == "done"


async def test_a_cut_connection_is_invisible_to_the_caller(session: LoopSession, proxy: PostgresProxy) -> None:
    answer = session.run(said("select pg_sleep(0.5)::text || 'done'"))
    await asyncio.sleep(0.1)

    proxy.cut()

    assert await answer == "done"
    await connected(session)


async def test_a_statement_that_may_have_been_executed_is_repeated_by_its_own_check(
    session: LoopSession, proxy: PostgresProxy, observer: Connection
) -> None:
    observer.execute("create table things (n int)")
    statement = "insert into things values (1) returning 'inserted'"
    lost = proxy.cut_around_commit("insert into things", before=False)

    look = said("select 'found ' || count(*) from things")

    assert await session.run(said(statement), again=look) == "found 1"
    lost.wait()


async def test_a_backend_that_ends_while_the_session_is_idle_is_noticed_at_once(
    session: LoopSession, observer: Connection
) -> None:
    used = await session.run(said(BACKEND))

    observer.execute("select pg_terminate_backend(%s, 20000)", (used,))

    while session._connection is not None:
        await asyncio.sleep(0.01)
    await connected(session)
    assert await session.run(said(BACKEND)) != used


async def test_a_server_that_does_not_answer_is_given_up_within_the_limits(
    connector: Connector, sessions: Sessions, proxy: PostgresProxy, observer: Connection
) -> None:
    session = LoopSession(connector, sessions)
    await connected(session)
    assert session._connection is not None
    session._connection.connection.answer_seconds = 0.3
    proxy.black_hole()
    answer = session.run(said("select 'done'"))
    await asyncio.sleep(0.6)

    proxy.heal()

    assert await answer == "done"
    await session.stop()


async def test_a_statement_that_takes_too_long_fails_with_the_name_of_the_setting(
    connector: Connector, sessions: Sessions
) -> None:
    session = LoopSession(connector, sessions, limits=SessionLimits(statement_seconds=1))
    await connected(session)

    with pytest.raises(StoreUnavailable, match="statement_timeout"):
        await session.run(said("select pg_sleep(20)::text"))

    await session.stop()


async def test_callers_fail_at_once_while_the_server_is_unreachable(session: LoopSession, proxy: PostgresProxy) -> None:
    proxy.refuse()
    proxy.cut()

    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            await session.run(said("select '1'"))

    proxy.heal()
    while True:
        try:
            await connected(session)
            break
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def test_without_prepared_statements_scripts_work_as_well(postgres_url: str) -> None:
    def chain() -> Script[str]:
        answer: str = yield pipelined((b"begin", ()), (b"select %s || %s", ("it's ", 5)), (b"commit", ()))
        return answer

    joint = "&" if "?" in postgres_url else "?"
    address = PostgresAddress.of(f"{postgres_url}{joint}prepare=off")
    connector = Connector(address)
    sessions = Sessions(address, "test", 1, connector=connector)
    sessions.start()
    session = LoopSession(connector, sessions)
    await connected(session)

    for _ in range(3):
        assert await session.run(said("select count(*)::text || %s from pg_prepared_statements", "!")) == "0!"
        assert await session.run(chain) == "it's 5"

    await session.stop()
    sessions.stop()


async def test_scripts_under_way_are_answered_before_the_end(connector: Connector, sessions: Sessions) -> None:
    session = LoopSession(connector, sessions)
    await connected(session)
    answer = session.run(said("select pg_sleep(0.3)::text || 'done'"))

    await session.stop()

    assert await answer == "done"


async def test_closing_does_not_wait_for_a_server_that_does_not_answer(
    connector: Connector, sessions: Sessions, proxy: PostgresProxy
) -> None:
    session = LoopSession(connector, sessions)
    await connected(session)
    proxy.black_hole()
    answer = session.run(said("select 'done'"))

    await session.stop(0.1)

    with pytest.raises(StoreUnavailable, match="was closed before it could answer"):
        await answer


def test_a_session_may_be_used_on_one_loop_after_the_other(connector: Connector, sessions: Sessions) -> None:
    session = LoopSession(connector, sessions)

    async def use() -> str:
        await connected_here()
        return await session.run(said("select 'done'"))

    async def connected_here() -> None:
        while session._connection is None or session._loop is not asyncio.get_running_loop():
            await session.run(said("select '1'"))
            await asyncio.sleep(0.01)

    assert [asyncio.run(use()) for _ in range(3)] == ["done"] * 3
    session.close()


class LateConnections:
    """Connections that are opened only after the loop that waits for them has stopped."""

    def __init__(self, connector: Connector, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[Connection] = []
        self._has_stopped = threading.Event()
        self._connect = connector.connect
        monkeypatch.setattr(connector, "connect", self._connected)

    def _connected(self, limits: SessionLimits) -> Connection:
        assert self._has_stopped.wait(GUARD_SECONDS)
        self.opened.append(self._connect(limits))
        return self.opened[-1]

    def stop_before(self, session: LoopSession) -> asyncio.AbstractEventLoop:
        """Let a session begin to connect, stop the loop, and return it when the connection is open."""
        loop = asyncio.new_event_loop()

        async def begin() -> None:
            session._open(loop)

        loop.run_until_complete(begin())
        self._has_stopped.set()
        assert session._opener is not None
        session._opener.join(GUARD_SECONDS)
        return loop


def test_a_connection_that_comes_after_its_loop_has_stopped_is_closed_with_the_session(
    connector: Connector, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, session = LateConnections(connector, monkeypatch), LoopSession(connector, sessions)

    loop = late.stop_before(session)
    session.close()
    loop.close()

    assert [connection.closed for connection in late.opened] == [True]


def test_a_connection_that_comes_after_its_loop_has_stopped_is_replaced_on_the_next_loop(
    connector: Connector, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, session = LateConnections(connector, monkeypatch), LoopSession(connector, sessions)

    late.stop_before(session).close()
    asyncio.run(connected(session))
    session.close()

    assert [connection.closed for connection in late.opened[:1]] == [True]


async def test_on_another_loop_the_fallback_sessions_answer(session: LoopSession) -> None:
    async def use() -> str:
        return await session.run(said("select 'done'"))

    assert await asyncio.to_thread(asyncio.run, use()) == "done"
    assert await session.run(said("select 'done'")) == "done"


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
async def test_a_forked_child_leaves_the_loop_connection_of_its_parent_alone(session: LoopSession) -> None:
    before = await session.run(said(BACKEND))

    child = os.fork()
    if not child:
        session.abandon()
        session.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    assert await session.run(said(BACKEND)) == before
