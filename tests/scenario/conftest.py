"""The stages on which every scenario runs.

The short tier runs scenarios on the memory store and in always-replay mode; the long tier adds the real stores. A
scenario marked `every_store` runs on all of them in the short tier too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.tiers import runs_on_real_stores
from tests.stage import MEMORY_KINDS, STORE_KINDS, Stage, url_for


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the kinds of stages of each scenario."""
    if "stage_kind" in metafunc.fixturenames:
        real = STORE_KINDS if runs_on_real_stores(metafunc.definition) else ()
        kinds = [*MEMORY_KINDS, *(pytest.param(kind, marks=pytest.mark.real_store) for kind in real)]
        metafunc.parametrize("stage_kind", kinds)


@pytest.fixture
def stage(stage_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """Each stage in turn."""
    return Stage(stage_kind, tmp_path, url_for(stage_kind, request))
