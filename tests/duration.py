"""How long a test lasts by design, which the guard of every test adds to what it grants."""

from __future__ import annotations

import pytest

from holdfast.testing.patience import GUARD_SECONDS

_GUARD_SECONDS = 1.25 * GUARD_SECONDS
"""So that a wait inside the test ends first, and tells what it was for. As `timeout` in pyproject.toml."""
_SLOWER = 20
"""How many times slower a machine may be whose processors are used by other programs too."""


def lasting(seconds: float) -> pytest.MarkDecorator:
    """Mark a test that takes so many seconds on a quiet machine."""
    return pytest.mark.timeout(_GUARD_SECONDS + _SLOWER * seconds)
