"""The stages for frozen workers: without constant replay, because these tests start their own workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stage import Stage, url_for


@pytest.fixture(params=["memory", "sqlite", "postgres", "dictionary", "redis"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """A memory store, an SQLite file, a database, and a key-value store on a dictionary and on a server."""
    return Stage(request.param, tmp_path, url_for(request.param, request))
