"""Databases and namespaces on which several stores are opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.ports import Store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.redis import redis_store
from holdfast.stores.sqlite import SqliteStore


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Return a function that opens stores on the same runs."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "runs.db")
    if request.param == "redis":
        namespace = request.getfixturevalue("redis_url")
        return lambda: redis_store(namespace)
    url = request.getfixturevalue("postgres_store_url")
    return lambda: PostgresStore(url)
