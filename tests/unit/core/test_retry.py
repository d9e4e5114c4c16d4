"""Retries: how long is waited before the next attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.clock import SECOND
from holdfast.core.retry import TASK_RETRY, Retry


@given(attempts=st.integers(1, 50))
def test_a_task_never_waits_less_than_its_attempts_squared_in_minutes_nor_a_tenth_more(attempts: int) -> None:
    minutes = attempts**2 * 60 * SECOND
    assert minutes <= TASK_RETRY.pause(attempts) <= minutes * 1.1


def test_a_task_has_three_attempts() -> None:
    assert [TASK_RETRY.allows(OSError(), attempts) for attempts in (1, 2, 3)] == [True, True, False]


def test_the_jitter_of_a_task_is_drawn_anew_each_time() -> None:
    assert len({TASK_RETRY.pause(1) for _ in range(50)}) > 1


def test_to_a_delay_of_ones_own_jitter_is_only_added() -> None:
    policy = Retry(delay=lambda attempt: 10.0 * attempt, jitter=0.5)
    drawn = [policy.pause(2) for _ in range(200)]
    assert 20 * SECOND <= min(drawn) < max(drawn) <= 30 * SECOND


@given(attempts=st.integers(1, 5000))
def test_growing_delays_are_spread_both_ways_and_have_a_ceiling(attempts: int) -> None:
    policy = Retry(initial=1, factor=2, max_delay=60, jitter=0.1)
    seconds = min(60, 2 ** min(attempts - 1, 64))
    assert seconds * 0.9 * SECOND <= policy.pause(attempts) <= seconds * 1.1 * SECOND
