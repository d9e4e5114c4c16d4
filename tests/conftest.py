"""Setup of every test: property tests without a deadline, and a real Postgres for those that ask for one.

Fixtures for users are in `holdfast.testing.plugin`, which pytest loads by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from tests.postgres import Databases, PostgresServer

pytest_plugins = ("tests.plugin.environment", "tests.plugin.tiers", "tests.plugin.summary")

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

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker has its own below the common one
    with shared_url(folder) as url, Databases(url) as databases:
        _note_server(url)
        yield databases


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
