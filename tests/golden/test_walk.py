"""A golden store of each kept number is migrated to the current one, and its runs end as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.golden import files
from tests.golden.runs import finish

KEPT = [(kind, number) for kind in ("sqlite", "postgres", "redis") for number in files.numbers(kind)]


@pytest.fixture
def golden_url(kind: str, number: int, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of a store that was loaded from its golden file."""
    if kind == "sqlite":
        files.load_sqlite(number, tmp_path / "golden.db")
        return f"sqlite:///{tmp_path / 'golden.db'}"
    url = str(request.getfixturevalue(f"{kind}_url"))
    load = files.load_postgres if kind == "postgres" else files.load_redis
    load(number, url)
    return url


@pytest.mark.parametrize(("kind", "number"), KEPT)
async def test_the_runs_of_a_golden_store_end_after_its_migration(golden_url: str) -> None:
    async with Holdfast(golden_url) as hf:
        await finish(hf)
