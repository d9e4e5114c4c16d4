"""Setup of every test: property tests without a deadline, and real Postgres and Redis servers for those that ask.

Fixtures for users are in `holdfast.testing.plugin`, which pytest loads by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from tests.postgres import Databases, PostgresServer
    from tests.redis import Namespaces, RedisServer

# To rewrite the assertions of all tests takes longer than to collect them. So keep the result, as `make` does.
sys.dont_write_bytecode = False

pytest_plugins = ("tests.plugin.environment", "tests.plugin.tiers", "tests.plugin.order", "tests.plugin.summary")

# No deadline: a slow machine is not a bug, and the guard ends a test that hangs.
settings.register_profile("short", deadline=None, print_blob=True, max_examples=40)
settings.register_profile("long", settings.get_profile("short"), max_examples=400)

# For `make mutants`, with a known bug: the same examples each time, and no shrinking of the first failure.
settings.register_profile(
    "mutants", deadline=None, print_blob=False, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)


@pytest.fixture(scope="session")
def postgres_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """Databases on the Postgres server that all workers of pytest share."""
    from tests.postgres import Databases, shared_url

    with shared_url(_common_folder(tmp_path_factory)) as url, Databases(url) as databases:
        _note_server(url)
        yield databases


def _common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of all workers of pytest."""
    folder = tmp_path_factory.getbasetemp()
    # Each worker has its own below the common one.
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def _note_server(url: str) -> None:
    """Name the server in the summary of the run: `Postgres 16.4 (private)`."""
    import psycopg

    from tests.plugin.summary import note_server
    from tests.postgres.sharing import VARIABLE

    with psycopg.connect(url) as connection:
        major, minor = divmod(connection.info.server_version, 10_000)
    is_private = os.environ.get(VARIABLE, "0").isdecimal()
    note_server(f"Postgres {major}.{minor} ({'private' if is_private else VARIABLE})")


@pytest.fixture
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """An empty database on the shared server, for this test only."""
    with postgres_databases.lend() as url:
        yield url


@pytest.fixture
def postgres_store_url(postgres_databases: Databases) -> Iterator[str]:
    """A database with the schema of a store and no rows, for this test only."""
    with postgres_databases.lend(is_migrated=True) as url:
        yield url


@pytest.fixture(scope="session")
def _own_postgres() -> Iterator[PostgresServer]:
    from tests.postgres import PostgresServer, wanted_version

    with PostgresServer(wanted_version()) as server:
        yield server


@pytest.fixture
def postgres_server(_own_postgres: PostgresServer) -> PostgresServer:
    """A server for this test alone, which it may stop, restart and kill; earlier tests leave their databases on it."""
    return _own_postgres.start() if _own_postgres.pid is None else _own_postgres


@pytest.fixture(scope="session")
def redis_namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    """Namespaces on the Redis server that all workers of pytest share."""
    from tests.redis import shared_namespaces

    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    with shared_namespaces(_common_folder(tmp_path_factory), worker) as namespaces:
        _note_redis(namespaces.url)
        yield namespaces


def _note_redis(url: str) -> None:
    """Name the server in the summary of the run: `Valkey 9.1.2 (private)`."""
    from tests.plugin.summary import note_server
    from tests.redis.cleaning import product_of
    from tests.redis.installation import VARIABLE, given_url

    note_server(f"{product_of(url)} ({'private' if given_url() is None else VARIABLE})")


@pytest.fixture
def redis_url(redis_namespaces: Namespaces) -> Iterator[str]:
    """An empty namespace on the shared server, for this test only. Keys outside of it fail the test."""
    with redis_namespaces.lend() as url:
        yield url


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A server for this test alone, which it may stop, restart, pause and kill."""
    from tests.redis import RedisServer

    with RedisServer() as server:
        yield server
