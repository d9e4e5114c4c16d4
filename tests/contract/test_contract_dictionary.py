"""The key-value store keeps the contract, with the driver on dictionaries."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.core.ports import Store
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.testing.contract import SettableClock, StoreContract, TransferContract


class TestDictionaryStore(StoreContract, TransferContract):
    """Every test of the contract, on the key-value store."""

    @pytest_asyncio.fixture
    async def store(self, clock: SettableClock) -> AsyncIterator[Store]:
        data = Dictionary()
        store = KeyValueStore(lambda: DictionaryDriver(data, clock=clock), clock=clock)
        await store.open()
        yield store
        await store.close()
