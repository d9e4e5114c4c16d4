"""Fixtures of the SQLite store tests: a file, a clock that the test moves, and a store on both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract import SettableClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest_asyncio.fixture
async def store(path: Path, clock: SettableClock) -> AsyncIterator[SqliteStore]:
    """An open, empty store."""
    store = SqliteStore(path, clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def other(store: SqliteStore, path: Path, clock: SettableClock) -> AsyncIterator[SqliteStore]:
    """A second store on the same file, as if opened by another process."""
    other = SqliteStore(path, clock=clock)
    await other.open()
    yield other
    await other.close()
