"""The pytest plugin: fixtures for testing workflows. Installed with holdfast, nothing to configure.

    async def test_checkout(harness):
        harness.include(shop.registry)
        assert await harness.execute(checkout, order) == "paid"

Fixtures are async, so an async plugin for pytest (pytest-asyncio, anyio) runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.testing.harness import Harness


@pytest.fixture
def make_harness() -> Iterator[Callable[..., Harness]]:
    """A function that makes harnesses: `async with make_harness(hf, always_replay=True) as h`."""
    from holdfast.testing.harness import Harness

    def make(*args: Any, **options: Any) -> Harness:
        return Harness(*args, **options)

    yield make
