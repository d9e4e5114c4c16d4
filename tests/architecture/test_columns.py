"""Stores generate their lists of columns: a column is named only where something is decided about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"

TABLES = ("schema.sql", "views.sql")

# What a claim, a start, a suspension or a layout decides. A list by hand would add a file.
DECIDING = {
    "first_claimed_at": {
        "stores/kv/names.py",
        "stores/postgres/functions/claims.sql",
        "stores/postgres/functions/starts.sql",
        "stores/redis/lua/claim.lua",
    },
    "suspended_at": {
        "stores/held.py",
        "stores/kv/names.py",
        "stores/postgres/checkpoints.py",
        "stores/postgres/functions/checkpoints.sql",
    },
    "retry_at": {"isolated/layout.py"},
}


def places_of(name: str) -> set[str]:
    """Return the files of stores that name a column, besides those that make tables and views for people."""
    files = [path for folder in ("stores", "isolated") for path in (SOURCE / folder).rglob("*")]
    texts = [path for path in files if path.suffix in (".py", ".sql", ".lua") and path.name not in TABLES]
    word = re.compile(rf"\b{name}\b", re.IGNORECASE)
    found = {path.relative_to(SOURCE) for path in texts if word.search(path.read_text("utf-8"))}
    return {path.as_posix() for path in found if "migrations" not in path.parts}


@pytest.mark.parametrize("name", DECIDING)
def test_no_store_lists_columns_by_hand(name: str) -> None:
    assert places_of(name) == DECIDING[name]
