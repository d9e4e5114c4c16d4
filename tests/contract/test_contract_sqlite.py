"""The SQLite store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from holdfast.core.ports import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract import DatabaseContract, SettableClock, StoreContract, TransferContract


class TestSqliteStore(StoreContract, DatabaseContract, TransferContract):
    """Every test of the contract, on the SQLite store."""

    @pytest_asyncio.fixture
    async def store(self, clock: SettableClock, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path / "runs.db", clock=clock)
        await store.open()
        yield store
        await store.close()
