"""Fixtures of the tests of the Redis driver: open drivers, alone and through a proxy that breaks connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from holdfast.stores.redis import RedisDriver
from holdfast.testing.contract import SettableClock
from tests.redis.proxy import RedisProxy


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest_asyncio.fixture
async def driver(redis_url: str, clock: SettableClock) -> AsyncIterator[RedisDriver]:
    """An open driver on an empty namespace, with the clock of the test."""
    driver = RedisDriver(redis_url, clock=clock)
    await driver.open()
    yield driver
    await driver.close()


@pytest_asyncio.fixture
async def other(redis_url: str, clock: SettableClock, driver: RedisDriver) -> AsyncIterator[RedisDriver]:
    """A second driver on the same namespace, as in another process."""
    other = RedisDriver(redis_url, clock=clock)
    await other.open()
    yield other
    await other.close()


@pytest.fixture
def driver_proxy(redis_url: str) -> Iterator[RedisProxy]:
    with RedisProxy(redis_url) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def far(driver_proxy: RedisProxy, clock: SettableClock) -> AsyncIterator[RedisDriver]:
    """An open driver whose connections go through the proxy."""
    far = RedisDriver(driver_proxy.url, clock=clock)
    await far.open()
    yield far
    driver_proxy.heal()
    await far.close()
