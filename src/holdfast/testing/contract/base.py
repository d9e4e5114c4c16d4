"""The base class of all parts of the contract."""

from __future__ import annotations

import pytest

from holdfast.testing.contract.clock import SettableClock


class Contract:
    """Tests of a store. The author of the store supplies the fixture `store`: open, empty, and running on `clock`."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def clock(self) -> SettableClock:
        """The clock of the store under test. It moves only when a test advances it."""
        return SettableClock()
