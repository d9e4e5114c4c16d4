"""The pytest plugin: fixtures for testing workflows. Installed with holdfast, nothing to configure.

    async def test_checkout(harness):
        harness.include(shop.registry)
        harness.stub("charge", returns="paid")
        assert await harness.execute(checkout, order) == "paid"

`harness` is open already and closed after the test; an async plugin (pytest-asyncio, or anyio where that is not
installed) runs it. `make_harness` makes harnesses with other options, to be entered by the test itself:

    async def test_checkout_repeats_itself(make_harness):
        async with make_harness(shop.registry, always_replay=True) as h: ...

`simulate` plays a scenario many times with workers that die, freeze and lose what they say and hear:

    def test_checkout_survives(simulate):
        simulate(shop.registry, scenario, seeds=200)

Nothing of holdfast is imported before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.testing.harness import Harness

    async_fixture: Callable[[Any], Any]

try:
    from pytest_asyncio import fixture as async_fixture
except ImportError:  # anyio takes plain fixtures
    async_fixture = pytest.fixture


@pytest.fixture
def make_harness() -> Callable[..., Harness]:
    """Make harnesses with options of their own, each to be entered with `async with`."""
    from holdfast.testing.harness import Harness

    def make(*args: Any, **options: Any) -> Harness:
        return Harness(*args, **options)

    return make


@pytest.fixture
def simulate() -> Callable[..., None]:
    """Play a scenario under many seeds: `simulate(registry, scenario, seeds=100)`. Not for tests that are async."""
    from holdfast.testing.simulation.scenario import simulate

    return simulate


@async_fixture
async def harness(make_harness: Callable[..., Harness]) -> AsyncIterator[Harness]:
    """A harness on a memory store with a running worker; `include` what the test needs."""
    async with make_harness() as opened:
        yield opened
