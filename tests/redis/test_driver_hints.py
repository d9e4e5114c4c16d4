"""Hints of the Redis driver: they reach all processes, and again after every break."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.stores.kv.driver import Part
from holdfast.stores.redis import RedisDriver, connector, hints
from holdfast.testing.patience import until
from tests.redis.patience import shorten_patience
from tests.redis.proxy import RedisProxy
from tests.redis.server import RedisServer


async def test_hints_are_received_by_all_drivers_from_the_moment_of_listening(
    driver: RedisDriver, other: RedisDriver
) -> None:
    here: list[bytes] = []
    there: list[bytes] = []
    driver.listen(here.append)
    other.listen(there.append)

    await driver.commit([Part(touches=["t"])], b"one \xff")

    await until("both receive it", lambda: here == there == [b"one \xff"])


async def test_a_listener_that_stopped_receives_nothing(driver: RedisDriver) -> None:
    gone: list[bytes] = []
    still: list[bytes] = []
    stop = driver.listen(gone.append)
    driver.listen(still.append)
    stop()
    stop()

    await driver.commit([Part(touches=["t"])], b"hint")

    await until("the other receives it", lambda: still == [b"hint"])
    assert gone == []


async def test_an_error_of_one_listener_does_not_keep_hints_from_another(driver: RedisDriver) -> None:
    received: list[bytes] = []
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    driver.listen(errors.remove)
    driver.listen(received.append)

    await driver.commit([Part(touches=["t"])], b"1")
    await driver.commit([Part(touches=["t"])], b"2")

    await until("both arrive", lambda: received == [b"1", b"2"])
    assert [type(error) for error in errors] == [ValueError, ValueError]


async def test_a_namespace_receives_only_its_own_hints(driver: RedisDriver, redis_url: str) -> None:
    beside = RedisDriver(f"{redis_url}_beside")
    await beside.open()
    received: list[bytes] = []
    driver.listen(received.append)

    await beside.commit([Part(touches=["t"])], b"theirs")
    await driver.commit([Part(touches=["t"])], b"ours")

    await until("ours arrives", lambda: received == [b"ours"])
    await beside.close()


async def test_after_a_break_a_listener_learns_that_hints_may_be_missing(
    far: RedisDriver, driver_proxy: RedisProxy, driver: RedisDriver
) -> None:
    received: list[bytes] = []
    far.listen(received.append)

    driver_proxy.refuse()
    driver_proxy.cut()
    await driver.commit([Part(touches=["t"])], b"missed")
    driver_proxy.heal()

    await until("the empty hint arrives", lambda: received == [b""])
    await driver.commit([Part(touches=["t"])], b"again")
    await until("hints arrive again", lambda: received == [b"", b"again"])


async def test_a_subscription_to_a_silent_server_is_given_up(
    redis_url: str, driver_proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "PING_SECONDS", 0.02)
    driver = RedisDriver(driver_proxy.url)
    await driver.open()
    received: list[bytes] = []
    driver.listen(received.append)
    pings = driver_proxy.commands["PING"]
    await until("some pings are answered", lambda: driver_proxy.commands["PING"] > pings + 2)
    assert received == []
    accepted = driver_proxy.accepted
    subscription = driver._hints._connection
    assert subscription is not None

    driver_proxy.black_hole()
    shorten_patience(subscription, 0.05)
    monkeypatch.setattr(connector, "ANSWER_SECONDS", 0.5)  # for connections that meet silence from the beginning
    await until("it is given up", lambda: not subscription.is_open)
    await until("it connects again", lambda: driver_proxy.accepted > accepted)
    driver_proxy.heal()

    await until("hints arrive again", lambda: b"" in received)
    await driver.close()


async def test_a_restart_of_the_server_wakes_all_listeners(redis_server: RedisServer) -> None:
    driver = RedisDriver(redis_server.url)
    await driver.open()
    received: list[bytes] = []
    driver.listen(received.append)

    redis_server.restart()

    await until("the empty hint arrives", lambda: b"" in received)
    await driver.close()
