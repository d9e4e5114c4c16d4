"""A worker's clock follows the store's."""

from __future__ import annotations

from holdfast.core.clock import SECOND, FollowingClock


def test_it_goes_on_from_what_it_was_told() -> None:
    passed = 0
    clock = FollowingClock(lambda: passed)
    clock.told(100 * SECOND)
    passed = 5_000_000_000
    assert clock.now() == 105 * SECOND


def test_an_answer_that_took_a_while_does_not_set_it_back() -> None:
    clock = FollowingClock(lambda: 0)
    clock.told(100 * SECOND)
    clock.told(100 * SECOND - SECOND // 2)
    assert clock.now() == 100 * SECOND


def test_it_follows_a_clock_that_was_set_back() -> None:
    clock = FollowingClock(lambda: 0)
    clock.told(100 * SECOND)
    clock.told(10 * SECOND)
    assert clock.now() == 10 * SECOND
