"""What the tests of the Postgres store have: a schema for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.stores.postgres.database import Place, empty_place


@pytest.fixture
def empty(postgres_url: str) -> Iterator[Place]:
    """A place without a schema."""
    with empty_place(postgres_url) as place:
        yield place


@pytest.fixture
def place(empty: Place) -> Place:
    """A place with the schema of this version, and nothing in it."""
    return empty.prepared()
