"""The stages on which a worker freezes: not the one that replays, as its workers are the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stage import Stage


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """A memory store, and an SQLite file."""
    return Stage(request.param, tmp_path)
