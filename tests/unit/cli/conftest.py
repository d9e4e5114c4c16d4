"""Fixtures of the command line tests: a shop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.rig import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop whose database does not exist yet."""
    return Shop(tmp_path)
