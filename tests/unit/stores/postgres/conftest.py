"""Fixtures of the Postgres store tests: a schema for each, or an empty place for the lower layers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import Connection, Connector, connect
from holdfast.stores.postgres.sessions import Sessions
from tests.postgres import PostgresProxy
from tests.unit.stores.postgres.database import Place, empty_place


@pytest.fixture
def empty(postgres_url: str) -> Iterator[Place]:
    """A place without a schema."""
    with empty_place(postgres_url) as place:
        yield place


@pytest.fixture
def place(empty: Place) -> Place:
    """A place with the schema of this version, without rows."""
    return empty.prepared()


@pytest.fixture
def address(postgres_url: str) -> PostgresAddress:
    return PostgresAddress.of(postgres_url)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[PostgresProxy]:
    """A proxy in front of the test's database that breaks connections on command."""
    with PostgresProxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: PostgresProxy) -> PostgresAddress:
    """The address of the database behind the proxy."""
    return PostgresAddress.of(proxy.url)


@pytest.fixture
def connector(far: PostgresAddress) -> Connector:
    return Connector(far)


@pytest.fixture
def sessions(far: PostgresAddress, connector: Connector) -> Iterator[Sessions]:
    """Two sessions, through the proxy."""
    sessions = Sessions(far, "test", 2, connector=connector)
    sessions.start()
    yield sessions
    sessions.stop(1)


@pytest.fixture
def observer(address: PostgresAddress) -> Iterator[Connection]:
    """An independent connection to the test's database."""
    connection = connect(address)
    yield connection
    connection.close()


@pytest_asyncio.fixture
async def store(postgres_store_url: str) -> AsyncIterator[PostgresStore]:
    """An open, empty store."""
    store = PostgresStore(postgres_store_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def outsider(postgres_store_url: str) -> Iterator[psycopg.Connection[Any]]:
    """An independent connection with its own transaction in the store's database."""
    with psycopg.connect(postgres_store_url) as connection:
        yield connection
        connection.rollback()
