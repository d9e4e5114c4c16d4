"""The order of tests: each worker of pytest begins with its share of the lasting ones, so that none comes last."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), _seconds)


def dealt(items: Sequence[T], workers: int, seconds: Callable[[T], float]) -> list[T]:
    """Deal lasting items to the beginnings of equal pieces, longest first.

    With `--dist worksteal`, each worker gets one of these pieces, and those that are done take from the ends of others.
    """
    lasting = sorted((item for item in items if seconds(item)), key=seconds, reverse=True)
    others = [item for item in items if not seconds(item)]
    ordered: list[T] = []
    for worker in range(workers):
        size = (len(items) - len(ordered)) // (workers - worker)
        first = lasting[worker::workers]
        rest = max(size - len(first), 0)
        ordered += [*first, *others[:rest]]
        others = others[rest:]
    return ordered + others


def _seconds(item: pytest.Item) -> float:
    """Return the time limit of a test that has its own (`lasting`), or 0."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None else 0
