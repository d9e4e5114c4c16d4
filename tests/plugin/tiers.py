"""Two tiers of tests: `--tier short` finds bugs cheaply, `--tier long` holds the rest of the proof.

Every test belongs to a tier. Without the option both run, each test with the amount of work of the short tier. What the
short tier does not run, it does not collect either: no folder (`LONG_FOLDERS`), no test, and no variant of a test.

    long         the test runs in the long tier only; so do all tests in a folder of the long tier
    both_tiers   the test runs in both tiers, and does more in the long one (`amount`); so does every property test
    every_store  the scenario runs on the real stores in the short tier too: the store itself is its subject, or it is
                 the one example of its feature on each store
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import settings

Tier = Literal["short", "long", "all"]

LONG_FOLDERS = ("process", "faults", "long")
"""Names of folders whose tests all run in the long tier only: they start processes, cut connections, or take long."""

_TESTS = Path(__file__).parents[1]

_chosen: Tier = "all"


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


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the folders of the long tier. None: other plugins and pytest decide."""
    return True if _chosen == "short" and collection_path.is_dir() and _is_in_long_folder(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, obj: object) -> list[pytest.Item] | None:
    """Make no items of a test of the long tier. None: pytest makes them."""
    if _chosen != "short" or not (inspect.isfunction(obj) or inspect.isclass(obj)):
        return None
    own = getattr(obj, "pytestmark", [])
    marks = {mark.name for mark in (*(own if isinstance(own, list) else [own]), *collector.iter_markers())}
    return [] if "long" in marks and "both_tiers" not in marks and not _is_property(obj) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if belongs_to(item, _chosen)]
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if not belongs_to(item, _chosen)])
        items[:] = wanted


def params(*, short: Iterable[Any], long: Iterable[Any]) -> list[Any]:
    """Return the parameters of a test or fixture in the tier of this run: those of both tiers, or of the short one."""
    return [*short, *(() if _chosen == "short" else (pytest.param(param, marks=pytest.mark.long) for param in long))]


def runs_on_real_stores(test: pytest.Item) -> bool:
    """True if the variants of a scenario on real stores may belong to the tier of this run."""
    return _chosen != "short" or bool(test.get_closest_marker("every_store")) or _is_in_both(test)


def belongs_to(item: pytest.Item, tier: Tier) -> bool:
    """True if a test runs in a tier."""
    return tier == "all" or _is_in_both(item) or _is_long(item) == (tier == "long")


def _is_in_both(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("both_tiers")) or _is_property(getattr(item, "obj", None))


def _is_long(item: pytest.Item) -> bool:
    if item.get_closest_marker("long") or _is_in_long_folder(item.path):
        return True
    return bool(item.get_closest_marker("real_store")) and not item.get_closest_marker("every_store")


def _is_in_long_folder(path: Path) -> bool:
    return path.is_relative_to(_TESTS) and not set(LONG_FOLDERS).isdisjoint(path.relative_to(_TESTS).parts)


def _is_property(test: object) -> bool:
    return bool(getattr(test, "is_hypothesis_test", False))
