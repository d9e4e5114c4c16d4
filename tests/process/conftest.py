"""A crew for each test. The output of its workers is shown when the test fails, and no run may be orphaned."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.app import session_of
from holdfast.core.questions import FindOrphans
from tests.process.crew import Crew


@pytest_asyncio.fixture
async def crew(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Crew]:
    """A crew on an SQLite file, or on the store that `on_every_store` chose."""
    store = getattr(request, "param", "sqlite")
    crew = Crew(tmp_path, url="" if store == "sqlite" else request.getfixturevalue(f"{store}_url"))
    async with crew.hf:
        try:
            yield crew
        finally:
            crew.dismiss()
            sys.stdout.write(crew.report("the end of the test"))
        assert await session_of(crew.hf).store.stats(FindOrphans(limit=10)) == []
        assert crew.complaints() == []
