"""The stores that figures are measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

STORES = ("sqlite", "postgres", "redis")


def url_of(store: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of a new, empty store, during the test."""
    return f"sqlite:///{folder / 'runs.db'}" if store == "sqlite" else str(request.getfixturevalue(f"{store}_url"))
