"""The stages on which every scenario plays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stage import KINDS, Stage, url_for


@pytest.fixture(params=KINDS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """Each of the stages in turn."""
    return Stage(request.param, tmp_path, url_for(request.param, request))
