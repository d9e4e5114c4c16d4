"""The stages on which every scenario runs.

The short tier runs scenarios on the memory store and in always-replay mode; the long tier adds the real stores. A
scenario marked `every_store` runs on all of them in the short tier too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stage import MEMORY_KINDS, STORE_KINDS, Stage, url_for


@pytest.fixture(params=[*MEMORY_KINDS, *(pytest.param(kind, marks=pytest.mark.real_store) for kind in STORE_KINDS)])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """Each stage in turn."""
    return Stage(request.param, tmp_path, url_for(request.param, request))
