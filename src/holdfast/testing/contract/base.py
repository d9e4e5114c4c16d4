"""What all parts of the contract share: a clock, and the wish for a store."""

from __future__ import annotations

import pytest

from holdfast.testing.contract.clock import SettableClock


class Contract:
    """Sentences about a store. The fixture `store`, opened on `clock` and empty, comes from its author."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def clock(self) -> SettableClock:
        """The clock of the store under test: it moves only when a test says so."""
        return SettableClock()
