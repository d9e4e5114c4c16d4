"""Two tiers of tests: `--tier short` finds bugs cheaply, `--tier long` holds the rest of the proof.

Every test belongs to a tier. Without the option both run, each test with the amount of work of the short tier.

    long         the test runs in the long tier only
    both_tiers   the test runs in both tiers, and does more in the long one (`amount`); so does every property test
    every_store  the scenario runs on the real stores in the short tier too: the store itself is its subject, or it is
                 the one example of its feature on each store
"""

from __future__ import annotations

import os
from typing import Literal

import pytest
from hypothesis import settings

Tier = Literal["short", "long", "all"]

LONG_FOLDERS = ("tests/process/", "tests/faults/")
"""Tests that start processes or cut connections, all of them."""

_chosen: Tier = "all"

DESELECTED = pytest.StashKey[int]()
"""Number of collected tests that belong to the other tier."""


def amount(*, short: int, long: int, variable: str = "") -> int:
    """Return the number of examples, seeds or races of a test in the tier of this run.

    The environment variable, if it is named and set, wins: `HOLDFAST_SIMULATION_SEEDS=5000 make test-long`.
    """
    by_hand = os.environ.get(variable, "") if variable else ""
    return int(by_hand) if by_hand else long if _chosen == "long" else short


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("short", "long", "all"),
        default="all",
        help="run the short tier, the long tier, or all tests with the amounts of the short tier (default)",
    )


def pytest_configure(config: pytest.Config) -> None:
    global _chosen  # noqa: PLW0603  test modules ask for amounts while they are imported
    _chosen = config.getoption("--tier")
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("long" if _chosen == "long" else "short")
    config.addinivalue_line("markers", "long: runs in the long tier only")
    config.addinivalue_line("markers", "both_tiers: runs in both tiers, and does more in the long one")
    config.addinivalue_line("markers", "every_store: runs on the real stores in the short tier too")
    config.addinivalue_line("markers", "real_store: this variant of a scenario plays on a real store")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if belongs_to(item, _chosen)]
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if not belongs_to(item, _chosen)])
        config.stash[DESELECTED] = len(items) - len(wanted)
        items[:] = wanted


def belongs_to(item: pytest.Item, tier: Tier) -> bool:
    """True if a test runs in a tier."""
    if tier == "all" or item.get_closest_marker("both_tiers") or _is_property(item):
        return True
    return _is_long(item) == (tier == "long")


def _is_long(item: pytest.Item) -> bool:
    if item.get_closest_marker("long") or item.nodeid.startswith(LONG_FOLDERS):
        return True
    return bool(item.get_closest_marker("real_store")) and not item.get_closest_marker("every_store")


def _is_property(item: pytest.Item) -> bool:
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))
