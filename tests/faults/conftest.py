"""A way to the database that breaks when it is told to, and one that does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing.postgres import PostgresProxy


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[PostgresProxy]:
    """A fault proxy before an empty database, which is at `postgres_url`."""
    with PostgresProxy(postgres_url) as proxy:
        yield proxy
