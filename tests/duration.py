"""The intended duration of a test, which the guard of every test adds to its limit."""

from __future__ import annotations

import pytest

from holdfast.testing.patience import GUARD_SECONDS

_GUARD_SECONDS = 1.25 * GUARD_SECONDS
"""Longer than waits inside the test, so that those end first and name their condition. See pyproject.toml."""
_SLOWER = 20
"""Factor by which a machine may be slower when other programs use its processors."""


def lasting(seconds: float) -> pytest.MarkDecorator:
    """Mark a test that takes this many seconds on a quiet machine."""
    return pytest.mark.timeout(_GUARD_SECONDS + _SLOWER * seconds)
