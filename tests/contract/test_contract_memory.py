"""The memory store keeps the contract: it is the model of all others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.core.ports import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract import SettableClock, StoreContract, TransferContract


class TestMemoryStore(StoreContract, TransferContract):
    """Every sentence of the contract, said of the memory store."""

    @pytest_asyncio.fixture
    async def store(self, clock: SettableClock) -> AsyncIterator[Store]:
        store = MemoryStore(clock=clock)
        await store.open()
        yield store
        await store.close()
