"""The memory store keeps the contract. It is the model for all others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.core.ports import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract import SettableClock, StoreContract, TransferContract


class TestMemoryStore(StoreContract, TransferContract):
    """Every test of the contract, on the memory store."""

    @pytest_asyncio.fixture
    async def store(self, clock: SettableClock) -> AsyncIterator[Store]:
        store = MemoryStore(clock=clock)
        await store.open()
        yield store
        await store.close()
