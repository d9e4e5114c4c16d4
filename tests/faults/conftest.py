"""Two URLs of a database: through a fault proxy, and direct."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from holdfast import Holdfast
from tests.faults.app import workflows
from tests.postgres import PostgresProxy


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[PostgresProxy]:
    """A fault proxy in front of an empty database, which is at `postgres_url`."""
    with PostgresProxy(postgres_url) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def hf(proxy: PostgresProxy) -> AsyncIterator[Holdfast]:
    """An application behind the proxy."""
    hf = Holdfast(proxy.url)
    hf.include(workflows)
    async with hf:
        yield hf
