"""A pytest plugin with fixtures for testing workflows. It comes with holdfast and needs no configuration.

    async def test_checkout(harness):
        harness.include(shop.registry)
        harness.stub("charge", returns="paid")
        assert await harness.execute(checkout, order) == "paid"

The fixture `harness` is already open, and it is closed after the test. An async plugin runs it: pytest-asyncio, or
anyio if pytest-asyncio is not installed. `make_harness` makes harnesses with other options; the test enters them:

    async def test_checkout_repeats_itself(make_harness):
        async with make_harness(shop.registry, always_replay=True) as h: ...

`simulate` plays a scenario many times with workers that die, freeze, and lose calls and answers:

    def test_checkout_survives(simulate):
        simulate(shop.registry, scenario, seeds=200)

The plugin imports nothing from holdfast until a test uses one of these fixtures.
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
    """A factory of harnesses with their own options. Enter each with `async with`."""
    from holdfast.testing.harness import Harness

    def make(*args: Any, **options: Any) -> Harness:
        return Harness(*args, **options)

    return make


@pytest.fixture
def simulate() -> Callable[..., None]:
    """Play a scenario under many seeds: `simulate(registry, scenario, seeds=100)`. Not for async tests."""
    from holdfast.testing.simulation.scenario import simulate

    return simulate


@async_fixture
async def harness(make_harness: Callable[..., Harness]) -> AsyncIterator[Harness]:
    """A harness on a memory store with a running worker. Call `include` with the registry that the test needs."""
    async with make_harness() as opened:
        yield opened
