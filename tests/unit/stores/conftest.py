"""What the tests of the SQLite store have: a file, a clock that stands still until it is moved, and a store on both."""

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
    """A store that is open, and empty."""
    store = SqliteStore(path, clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def other(store: SqliteStore, path: Path, clock: SettableClock) -> AsyncIterator[SqliteStore]:
    """A second store on the same file, which is to the first what another process is."""
    other = SqliteStore(path, clock=clock)
    await other.open()
    yield other
    await other.close()
