"""Clocks: a worker's clock follows the store's clock, and is never ahead of it."""

from __future__ import annotations

from holdfast.core.clock import SECOND, FollowingClock

THEN = 1_900_000_000 * SECOND


class Stopwatch:
    """A stopwatch in nanoseconds that a test advances."""

    def __init__(self) -> None:
        self.nanoseconds = 7_000_000_000

    def __call__(self) -> int:
        return self.nanoseconds

    def pass_by(self, seconds: float) -> None:
        self.nanoseconds += round(seconds * 1e9)


def test_a_following_clock_adds_the_time_since_the_last_answer_of_the_store() -> None:
    watch = Stopwatch()
    clock = FollowingClock(watch)

    clock.sync(THEN)
    watch.pass_by(2.5)

    assert clock.now() == THEN + 2.5 * SECOND


def test_a_following_clock_is_not_ahead_by_a_rounded_fraction() -> None:
    watch = Stopwatch()
    watch.nanoseconds += 999
    clock = FollowingClock(watch)

    clock.sync(THEN)
    watch.nanoseconds += 1

    assert clock.now() == THEN


def test_a_following_clock_does_not_go_back_for_a_delayed_answer() -> None:
    watch = Stopwatch()
    clock = FollowingClock(watch)
    clock.sync(THEN)
    asked_at = clock.now()
    watch.pass_by(3600)  # the process was frozen

    clock.sync(THEN + SECOND, asked_at)

    assert clock.now() == THEN + 3600 * SECOND


def test_a_following_clock_does_not_go_back_for_an_answer_without_a_request_time() -> None:
    clock = FollowingClock(Stopwatch())
    clock.sync(THEN)

    clock.sync(THEN - 60 * SECOND)

    assert clock.now() == THEN


def test_a_following_clock_goes_back_when_the_store_was_set_back() -> None:
    watch = Stopwatch()
    clock = FollowingClock(watch)
    clock.sync(THEN)

    clock.sync(THEN - 60 * SECOND, asked_at=clock.now())

    assert clock.now() == THEN - 60 * SECOND


def test_a_following_clock_leaps_with_the_store() -> None:
    watch = Stopwatch()
    clock = FollowingClock(watch)
    clock.sync(THEN)

    clock.sync(THEN + 3600 * SECOND)

    assert clock.now() == THEN + 3600 * SECOND
