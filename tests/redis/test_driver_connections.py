"""Connections of the Redis driver: lost answers, outages, and errors that say what to do."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.model import Holding
from holdfast.stores.kv.driver import AllFields, Part, Reserve
from holdfast.stores.redis import RedisDriver, connector
from holdfast.stores.redis.server import CLIENT_NAME
from holdfast.testing.contract import START, SettableClock
from holdfast.testing.patience import until, wait_until
from tests.redis.certificate import Certificate
from tests.redis.cleaning import connect
from tests.redis.driver_runs import a_held_run, a_run, place, read_lines, read_run
from tests.redis.patience import shorten_patience
from tests.redis.proxy import RedisProxy
from tests.redis.server import RedisServer

LEASE = 30 * SECOND
REQUEST = ClaimRequest(id="c", worker="me", types=("order",), limit=2, lease=LEASE, python="3.11")

Moment = Literal["before", "lost"]


# Lost answers


@pytest.mark.parametrize("moment", ["before", "lost"])
async def test_a_commit_is_repeated_and_its_checks_keep_it_from_happening_twice(
    far: RedisDriver, driver_proxy: RedisProxy, moment: Moment
) -> None:
    await far.commit([])
    rule = driver_proxy.cut_around("evalsha .*:l1 ", moment)

    committed = await far.commit([Part(checks={"p": 0}, puts={"p": {}}, appends={"l1": [b"once"]})])

    rule.wait()
    assert committed.refused == ([None] if moment == "before" else ["p"])
    assert committed.is_repeat
    assert not (await far.commit([Part(checks={"p": 0})])).is_repeat
    assert await read_lines(far, "l1") == [b"once"]


@pytest.mark.parametrize("moment", ["before", "lost"])
async def test_a_claim_whose_answer_was_lost_returns_the_runs_that_it_has_won(
    far: RedisDriver, driver_proxy: RedisProxy, moment: Moment
) -> None:
    await place(far, [a_run(f"r{number}") for number in range(5)])
    await far.claim(ClaimRequest(id="0", worker="me", types=("none",), limit=1, lease=LEASE, python="3"))
    rule = driver_proxy.cut_around("evalsha .* order", moment)

    found = await far.claim(REQUEST)

    rule.wait()
    assert [run.id for run in found.runs] == ["r0", "r1"]
    assert not (await read_run(far, "r2"))[0].is_held


async def test_a_load_is_repeated(far: RedisDriver, driver_proxy: RedisProxy) -> None:
    await far.load([])
    rule = driver_proxy.cut_around("evalsha", "lost")

    assert (await far.load([Reserve("n", 1)])).answers == [range(2, 3)]

    rule.wait()


async def test_a_renewal_is_repeated(far: RedisDriver, driver_proxy: RedisProxy) -> None:
    await place(far, [a_held_run("a", "me")])
    far.renew("me", b"{}", [], LEASE)
    rule = driver_proxy.cut_around("evalsha", "lost")

    _, (verdict,) = far.renew("me", b"{}", [Holding(run_id="a", token=1)], LEASE)

    rule.wait()
    assert verdict is not None
    assert (await read_run(far, "a"))[0].ready_at == START + LEASE


async def test_a_call_that_always_loses_its_connection_fails(far: RedisDriver, driver_proxy: RedisProxy) -> None:
    await far.load([])
    driver_proxy.cut_around("evalsha", "lost", count=100)

    with pytest.raises(StoreUnavailable, match="the connection broke"):
        await far.load([AllFields("p")])


async def test_many_callers_share_one_connection(far: RedisDriver, driver_proxy: RedisProxy) -> None:
    await far.load([])
    accepted = driver_proxy.accepted
    driver_proxy.cut()

    answers = await asyncio.gather(*(far.load([Reserve(f"n{number}", 1)]) for number in range(50)))

    assert [answer.answers for answer in answers] == [[range(1, 2)]] * 50
    await until("the hints are back, too", lambda: driver_proxy.accepted == accepted + 2)


async def test_a_caller_that_gives_up_does_not_disturb_the_others(far: RedisDriver, driver_proxy: RedisProxy) -> None:
    await far.load([])
    driver_proxy.black_hole()
    first = asyncio.create_task(far.load([Reserve("a", 1)]))
    second = asyncio.create_task(far.load([Reserve("b", 1), Reserve("b", 1)]))
    await asyncio.sleep(0)
    first.cancel()
    driver_proxy.heal()

    assert (await second).answers == [range(1, 2), range(2, 3)]
    assert first.cancelled()


async def test_a_server_that_forgot_the_scripts_gets_them_again(redis_server: RedisServer) -> None:
    driver = RedisDriver(redis_server.url, clock=SettableClock())
    await driver.open()
    await place(driver, [a_run("a"), a_held_run("b", "me", token=1, ready_at=START + LEASE)])
    redis_server.ask("SCRIPT", "FLUSH")

    assert (await driver.commit([Part(puts={"p": {}})])).refused == [None]
    assert [run.id for run in (await driver.claim(REQUEST)).runs] == ["a"]
    assert driver.renew("me", b"{}", [Holding(run_id="b", token=1)], LEASE)[1] != [None]
    await driver.close()


def test_other_event_loops_work_alike(redis_url: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use() -> tuple[list[object], list[bytes]]:
        with RedisProxy(redis_url) as proxy:
            driver = RedisDriver(proxy.url)
            await driver.open()
            hints: list[bytes] = []
            driver.listen(hints.append)
            proxy.cut()
            await until("the hints are back", lambda: hints == [b""])
            await driver.commit([Part(touches=["t"])], b"hint")
            await until("the hint is heard", lambda: hints == [b"", b"hint"])
            answers = (await driver.load([Reserve("n", 2)])).answers
            await driver.close()
            return answers, hints

    assert uvloop.run(use()) == ([range(1, 3)], [b"", b"hint"])


# Outages


async def test_an_outage_is_logged_once_and_ends_by_itself(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.store")
    driver = RedisDriver(redis_server.url)
    await driver.open()
    redis_server.stop()
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="cannot be reached: no server listens there") as caught:
            await driver.load([])
        assert caught.value.is_noted
    redis_server.start()

    async def is_back() -> bool:
        try:
            await driver.load([])
        except StoreUnavailable:
            return False
        return True

    await until("the driver has connected again", is_back)
    await driver.close()
    lines = [record.message for record in caplog.records]
    assert len([text for text in lines if text.startswith("lost the Redis server")]) == 1
    assert len([text for text in lines if text.startswith("the Redis server is back")]) == 1


async def test_a_caller_that_repeats_without_a_pause_does_not_stop_the_event_loop(redis_server: RedisServer) -> None:
    """An attempt to connect that has failed is over, also for a caller that comes before the loop has noticed it."""
    driver = RedisDriver(redis_server.url)
    await driver.open()
    redis_server.stop()
    await until("the connection is closed", lambda: driver._connection is None or not driver._connection.is_open)
    over: asyncio.Task[Any] = asyncio.create_task(driver._connect())
    await asyncio.wait([over])
    assert isinstance(over.exception(), StoreUnavailable)  # taken here, so that asyncio does not log it later
    redis_server.start()

    async def is_back() -> bool:
        driver._connecting = over
        try:
            await driver.load([])
        except StoreUnavailable:
            return False
        return True

    await until("a call makes another attempt", is_back)
    await driver.close()


async def test_a_connection_that_the_server_closes_because_it_is_idle_is_no_outage(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    driver = RedisDriver(redis_server.url)
    await driver.open()
    connection = driver._connection
    assert connection is not None
    redis_server.ask("CLIENT", "KILL", "TYPE", "normal")
    await until("the connection is closed", lambda: not connection.is_open)

    await driver.load([])

    assert caplog.records == []
    await driver.close()


async def test_a_silent_server_is_given_up(
    redis_server: RedisServer, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = RedisDriver(redis_server.url, clock=clock)
    await driver.open()
    driver.renew("me", b"{}", [], LEASE)
    connection, renewing = driver._connection, driver._renewals._connection
    assert connection is not None
    assert renewing is not None
    shorten_patience(connection, 0.1)
    renewing._answer_seconds = 0.1
    monkeypatch.setattr(connector, "ANSWER_SECONDS", 0.5)  # for connections that meet silence from the beginning
    redis_server.pause()
    try:
        with pytest.raises(StoreUnavailable, match=r"does not answer \(no reply for 0.1 s\); the operation may or may"):
            await driver.load([])
        with pytest.raises(StoreUnavailable, match="does not answer"):
            driver.renew("me", b"{}", [], LEASE)
    finally:
        redis_server.resume()

    async def is_back() -> bool:
        try:
            return driver.renew("me", b"{}", [], LEASE)[0] == (await driver.load([])).now
        except StoreUnavailable:
            return False

    await until("it answers again", is_back)
    await driver.close()


async def test_close_waits_for_the_answers_under_way(far: RedisDriver, driver_proxy: RedisProxy) -> None:
    await far.load([])
    driver_proxy.delay(to_client=0.05)
    load = asyncio.create_task(far.load([Reserve("n", 1)]))
    await asyncio.sleep(0)

    await far.close()

    assert (await load).answers == [range(1, 2)]
    with pytest.raises(StoreUnavailable, match="is not open"):
        await far.load([])
    with pytest.raises(StoreUnavailable, match="is not open"):
        far.renew("me", b"{}", [], LEASE)


async def test_a_closed_driver_can_be_opened_again(driver: RedisDriver) -> None:
    await driver.commit([Part(puts={"p": {}})])
    epoch = driver.epoch
    await driver.close()
    await driver.close()

    await driver.open()
    await driver.open()

    assert (await driver.commit([Part(puts={"p": {}})])).refused == [None]
    assert driver.epoch == epoch
    driver.renew("me", b"{}", [], LEASE)


async def test_close_ends_a_renewal_in_another_thread(far: RedisDriver, driver_proxy: RedisProxy) -> None:
    far.renew("me", b"{}", [], LEASE)
    driver_proxy.black_hole()
    errors: list[Exception] = []

    def renew() -> None:
        try:
            far.renew("me", b"{}", [], LEASE)
        except StoreUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=renew)
    requests = driver_proxy.requests
    thread.start()
    await until("it waits for the answer", lambda: driver_proxy.requests > requests)
    await far.close()
    thread.join()

    assert len(errors) == 1


# Processes


async def test_a_forked_child_is_refused(driver: RedisDriver) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in another process
        try:
            driver.renew("me", b"{}", [], LEASE)
        except StoreUnavailable as error:
            os.write(write_end, str(error).encode())
        os._exit(0)
    os.close(write_end)
    text = os.read(read_end, 1_000).decode()
    os.close(read_end)
    os.waitpid(child, 0)

    assert f"was opened in another process (pid {os.getpid()})" in text
    assert (await driver.load([])).now == START


# Errors


async def _refusal(url: str) -> str:
    driver = RedisDriver(url)
    with pytest.raises((StoreUnavailable, InvalidRequest)) as caught:
        await driver.open()
    await driver.close()
    return str(caught.value)


async def test_no_server_and_unknown_hosts_are_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert "no server listens there" in await _refusal(f"redis://127.0.0.1:{port}")
        assert "no server listens there" in await _refusal(f"redis://localhost:{port}")
    assert "the host name is unknown" in await _refusal("redis://no-such-host.invalid")


async def test_wrong_passwords_and_users_are_named(redis_server: RedisServer) -> None:
    redis_server.settings |= {"requirepass": "tr0ub4dor", "user": "weak on >secret ~* &* +@all -evalsha -eval -config"}
    redis_server.restart()
    port = redis_server.port

    assert "requires a password" in await _refusal(f"redis://127.0.0.1:{port}")
    wrong = await _refusal(f"redis://:WRONG@127.0.0.1:{port}")
    assert "refuses user or password" in wrong
    assert "WRONG@" not in wrong
    assert "ACL SETUSER weak on" in await _refusal(f"redis://weak:secret@127.0.0.1:{port}")
    assert "has no database with this number" in await _refusal(redis_server.url_of("", "tr0ub4dor", database=999))


async def test_a_password_for_a_server_without_one_is_named(redis_server: RedisServer) -> None:
    assert "has no password" in await _refusal(f"redis://:secret@127.0.0.1:{redis_server.port}")


async def test_a_server_without_connections_left_is_named(redis_server: RedisServer) -> None:
    redis_server.ask("CONFIG", "SET", "maxclients", 1)
    with socket.create_connection(("127.0.0.1", redis_server.port)):

        async def is_full() -> bool:
            return "has no connection left" in await _refusal(redis_server.url)

        await until("the server refuses", is_full)


async def test_something_that_is_no_redis_server_is_named() -> None:
    is_closed = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        is_closed.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "not those of a Redis server" in await _refusal(f"redis://127.0.0.1:{port}")
        await is_closed.wait()


async def test_a_server_that_becomes_a_replica_is_named(redis_server: RedisServer) -> None:
    driver = RedisDriver(redis_server.url)
    await driver.open()
    redis_server.ask("REPLICAOF", "127.0.0.1", 1)

    with pytest.raises(StoreUnavailable, match="is a replica"):
        await driver.commit([Part(puts={"p": {}})])
    with pytest.raises(StoreUnavailable, match="is a replica"):  # not even stale data is read
        await driver.load([])
    with pytest.raises(StoreUnavailable, match="is a replica"):
        driver.renew("me", b"{}", [], LEASE)
    await driver.close()


async def test_keys_of_another_program_are_named(redis_server: RedisServer) -> None:
    redis_server.ask("SET", "{holdfast}:meta", "theirs")

    assert "keys of another program" in await _refusal(redis_server.url)


# TLS


async def test_encrypted_connections(
    redis_server: RedisServer, tmp_path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = Certificate(tmp_path).make()
    with RedisProxy(redis_server.url, encryption=certificate.encryption()) as proxy:
        driver = RedisDriver(f"{proxy.url}?ssl_ca_certs={certificate.file}", clock=clock)
        await driver.open()
        await place(driver, [a_held_run("a", "me", ready_at=START + LEASE)])
        hints: list[bytes] = []
        driver.listen(hints.append)

        await driver.commit([Part(puts={"p": {"x": b"x" * 100_000}})], b"hint")

        assert (await driver.load([AllFields("p")])).answers[0].fields == {"x": b"x" * 100_000}  # type: ignore[attr-defined]
        assert driver.renew("me", b"{}", [Holding(run_id="a", token=1)], LEASE)[1] != [None]
        await until("the hint is heard", lambda: hints == [b"hint"])
        await driver.close()

        assert "its certificate is not accepted" in await _refusal(proxy.url)
        assert "does this port take connections without TLS" in await _refusal(proxy.url.replace("rediss", "redis"))
        unchecked = RedisDriver(f"{proxy.url}?ssl_cert_reqs=none")
        await unchecked.open()
        await unchecked.close()
    monkeypatch.setattr(connector, "CONNECT_SECONDS", 0.2)
    assert "does the server speak TLS there" in await _refusal(redis_server.url.replace("redis:", "rediss:"))


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nothing\.pem cannot be used"):
        RedisDriver(f"rediss://localhost?ssl_ca_certs={tmp_path}/nothing.pem")


# The end of the event loop


def _connections(server: RedisServer) -> int:
    """Return the number of connections that stores have to a server."""
    with connect(server.url) as client:
        return sum(one["name"] == CLIENT_NAME for one in client.client_list())


def test_a_driver_can_be_closed_after_its_loop(redis_server: RedisServer) -> None:
    driver = RedisDriver(redis_server.url)
    asyncio.run(driver.open())

    asyncio.run(driver.close())

    with pytest.raises(StoreUnavailable, match="not open"):
        asyncio.run(driver.load([]))
    del driver
    gc.collect()  # a socket that is still open warns here, and not in another test


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_the_sockets_are_closed_when_the_event_loop_ends(
    redis_server: RedisServer, is_encrypted: bool, tmp_path: Path
) -> None:
    certificate = Certificate(tmp_path).make()
    with RedisProxy(redis_server.url, encryption=certificate.encryption() if is_encrypted else None) as proxy:
        driver = RedisDriver(f"{proxy.url}?ssl_ca_certs={certificate.file}" if is_encrypted else proxy.url)
        asyncio.run(driver.open())

        wait_until("the server has no connections", lambda: _connections(redis_server) == 0)
        del driver
        gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # asyncio's own: only its loop can free its transports
def test_a_loop_that_was_closed_without_a_shutdown_leaves_no_connection(redis_server: RedisServer) -> None:
    driver = RedisDriver(redis_server.url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(driver.open())
    assert _connections(redis_server) == 2
    loop.close()

    asyncio.run(driver.close())

    wait_until("the server has no connections", lambda: _connections(redis_server) == 0)
    del driver, loop
    gc.collect()  # here and not in another test


def test_a_task_that_ends_with_the_loop_can_still_write(redis_server: RedisServer) -> None:
    """Such as a worker that releases its runs when it is cancelled."""
    driver = RedisDriver(redis_server.url)
    refused: list[list[str | None]] = []

    async def work(is_started: asyncio.Event) -> None:
        try:
            is_started.set()
            await asyncio.Event().wait()
        finally:
            refused.append((await driver.commit([Part(puts={"p": {}})])).refused)

    async def leave() -> None:
        await driver.open()
        is_started = asyncio.Event()
        tasks.append(asyncio.create_task(work(is_started)))
        await is_started.wait()

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(leave())

    assert refused == [[None]]
    wait_until("the server has no connections", lambda: _connections(redis_server) == 0)
