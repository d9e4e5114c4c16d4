"""Retries: the delay before the next attempt."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import InvalidRequest
from holdfast.core.clock import SECOND
from holdfast.core.retry import TASK_RETRY, Retry
from tests.rows import each_row


@given(attempts=st.integers(1, 50))
def test_a_task_waits_its_attempts_squared_in_minutes_and_up_to_a_tenth_more(attempts: int) -> None:
    minutes = attempts**2 * 60 * SECOND
    assert minutes <= TASK_RETRY.pause(attempts) <= minutes * 1.1


def test_a_task_has_three_attempts() -> None:
    assert [TASK_RETRY.allows(OSError(), attempts) for attempts in (1, 2, 3)] == [True, True, False]


def test_the_jitter_of_a_task_is_drawn_for_each_delay() -> None:
    assert len({TASK_RETRY.pause(1) for _ in range(50)}) > 1


def test_jitter_only_adds_to_a_custom_delay() -> None:
    policy = Retry(delay=lambda attempt: 10.0 * attempt, jitter=0.5)
    drawn = [policy.pause(2) for _ in range(200)]
    assert 20 * SECOND <= min(drawn) < max(drawn) <= 30 * SECOND


@given(attempts=st.integers(1, 5000))
def test_growing_delays_are_spread_both_ways_and_have_a_ceiling(attempts: int) -> None:
    policy = Retry(initial=1, factor=2, max_delay=60, jitter=0.1)
    seconds = min(60, 2 ** min(attempts - 1, 64))
    assert seconds * 0.9 * SECOND <= policy.pause(attempts) <= seconds * 1.1 * SECOND


def test_the_first_delay_is_never_cut_by_the_longest_delay() -> None:
    policy = Retry(initial=600, jitter=0)
    assert [policy.pause(attempts) for attempts in (1, 2, 3)] == [600 * SECOND] * 3


def test_durations_may_be_timedeltas() -> None:
    policy = Retry(initial=timedelta(seconds=2), max_delay=timedelta(minutes=1), jitter=0)
    assert [policy.pause(attempts) for attempts in (1, 2, 10)] == [2 * SECOND, 4 * SECOND, 60 * SECOND]
    assert Retry(delay=lambda attempt: timedelta(seconds=attempt), jitter=0).pause(3) == 3 * SECOND


def test_errors_may_be_a_list_or_nested() -> None:
    policy = Retry(retry_on=[ConnectionError, (KeyError,)], give_up_on=[ConnectionResetError])  # type: ignore[list-item]
    allowed = [policy.allows(error, 1) for error in (ConnectionError(), KeyError(), ConnectionResetError(), OSError())]
    assert allowed == [True, True, False, False]
    assert hash(policy) == hash(Retry(retry_on=(ConnectionError, (KeyError,)), give_up_on=(ConnectionResetError,)))  # type: ignore[arg-type]


@each_row(
    ("options", "message"),
    [
        ({"max_attempts": "3"}, r"Retry\(max_attempts='3'\): expected a whole number"),
        ({"max_attempts": 0}, "at least 1"),
        ({"max_attempts": 2.5}, "whole number"),
        ({"max_attempts": True}, "whole number"),
        ({"initial": "1s"}, "Retry: initial='1s': expected seconds or a timedelta"),
        ({"initial": timedelta(seconds=-1)}, r"Retry\(initial=-1.0\): expected a number that is not negative"),
        ({"max_delay": math.nan}, "Retry: max_delay=nan is not a length of time"),
        ({"factor": "2"}, r"Retry\(factor='2'\): expected a number"),
        ({"factor": math.nan}, r"Retry\(factor=nan\)"),
        ({"jitter": -0.1}, r"Retry\(jitter=-0.1\)"),
        ({"retry_on": "ConnectionError"}, r"Retry\(retry_on=…\): 'ConnectionError' is not an exception class"),
        ({"retry_on": ConnectionError()}, r"ConnectionError\(\) is not an exception class; pass one"),
        ({"retry_on": None}, "None is not an exception class"),
        ({"give_up_on": [ValueError, "x"]}, r"Retry\(give_up_on=…\): 'x' is not an exception class"),
        ({"delay": 5}, r"Retry\(delay=5\): expected a function"),
    ],
)
def test_an_invalid_retry_policy_is_refused_when_it_is_created(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Retry(**options)
