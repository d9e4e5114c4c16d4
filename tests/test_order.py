"""The order of tests: lasting ones are dealt to the beginnings of the pieces that workers get."""

from __future__ import annotations

import pytest

from tests.plugin.order import dealt


def seconds(name: str) -> float:
    """The duration is part of the name: `slow9`. Others are quick."""
    return float(name.removeprefix("slow")) if name.startswith("slow") else 0


def test_each_worker_begins_with_its_share_of_the_lasting_tests() -> None:
    items = ["a", "slow3", "b", "c", "slow9", "d", "slow5", "e", "f", "g"]

    assert dealt(items, 2, seconds) == ["slow9", "slow3", "a", "b", "c", "slow5", "d", "e", "f", "g"]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("items", [[], ["a"], ["slow1"], ["slow1", "slow2", "slow3", "a"], [*"abcdefghij", "slow1"]])
def test_no_test_is_lost(items: list[str], workers: int) -> None:
    assert sorted(dealt(items, workers, seconds)) == sorted(items)
