"""The Postgres store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.core.ports import Store
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.contract import DatabaseContract, SettableClock, StoreContract, TransferContract


class TestPostgresStore(StoreContract, DatabaseContract, TransferContract):
    """Every test of the contract, on the Postgres store."""

    @pytest_asyncio.fixture
    async def store(self, clock: SettableClock, postgres_store_url: str) -> AsyncIterator[Store]:
        store = PostgresStore(postgres_store_url, clock=clock)
        await store.open()
        yield store
        await store.close()
