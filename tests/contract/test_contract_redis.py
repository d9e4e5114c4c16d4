"""The key-value store keeps the contract on a Redis or Valkey server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.core.ports import Store
from holdfast.stores.redis import redis_store
from holdfast.testing.contract import SettableClock, StoreContract, TransferContract


class TestRedisStore(StoreContract, TransferContract):
    """Every test of the contract, on a server."""

    @pytest_asyncio.fixture
    async def store(self, clock: SettableClock, redis_url: str) -> AsyncIterator[Store]:
        store = redis_store(redis_url, clock=clock)
        await store.open()
        yield store
        await store.close()
