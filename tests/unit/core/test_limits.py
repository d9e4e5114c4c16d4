"""Limits: the slots that a run needs, and the memory of a rate limit."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.core import limits
from holdfast.core.clock import Micros
from holdfast.core.limits import WINDOW_BLOCKS, Window
from holdfast.core.model import Intent, Rate, Run, TypeRule
from holdfast.core.rules import new_run

RATES = st.builds(Rate, count=st.integers(1, 8), period=st.sampled_from([1, 7, 64, 100, 6_400]))
PAUSES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 200), st.integers(0, 10_000)), max_size=60)


def a_run(**tags: str) -> Run:
    return new_run(Intent(id="r", type="t", payload="{}", tags=tags), 0)


def begins(rate: Rate, pauses: list[int]) -> list[tuple[Micros, Micros]]:
    """Return pairs (wanted, actual) of start times: runs arrive after these pauses and start as soon as allowed."""
    now, window, done = 0, Window(), []
    for pause in pauses:
        wanted = now = now + pause
        at = limits.next_at(window, rate, 0, now)
        assert at is not None
        now = max(now, at)
        assert limits.begun(window, rate, now) < rate.count
        window = limits.with_one_more(window, rate, now)
        done.append((wanted, now))
    return done


@given(RATES, PAUSES)
def test_no_period_contains_more_starts_than_allowed(rate: Rate, pauses: list[int]) -> None:
    times = [at for _, at in begins(rate, pauses)]

    for index, at in enumerate(times[rate.count :]):
        assert at >= times[index] + rate.period


@given(RATES, PAUSES)
def test_no_start_waits_much_longer_than_necessary(rate: Rate, pauses: list[int]) -> None:
    """A block of the window counts as its last instant, so a wait may be longer by at most one block."""
    done = begins(rate, pauses)
    slack = max(1, rate.period // WINDOW_BLOCKS)

    for index, (wanted, at) in enumerate(done):
        if at > wanted:
            assert index >= rate.count
            assert at < done[index - rate.count][1] + rate.period + slack


@given(RATES, PAUSES)
def test_a_window_stays_small(rate: Rate, pauses: list[int]) -> None:
    window, now = Window(), 0
    for pause in pauses:
        now += pause
        window = limits.with_one_more(window, rate, now)

    assert len(window.blocks) <= min(len(pauses), rate.period, WINDOW_BLOCKS * 2) + 1


def test_a_clock_that_is_set_back_allows_no_early_start() -> None:
    rate = Rate(count=2, period=100)
    window = limits.with_one_more(limits.with_one_more(Window(), rate, 1_000), rate, 990)

    assert limits.next_at(window, rate, 0, 1_000) == 1_100


def test_a_promised_start_counts_like_a_start() -> None:
    rate = Rate(count=2, period=100)
    window = limits.with_one_more(Window(), rate, 10)

    assert limits.next_at(window, rate, 0, 20) == 20
    assert limits.next_at(window, rate, 1, 20) == 110
    assert limits.next_at(window, rate, 2, 20) is None


def test_slots_are_those_of_the_keys_then_the_type_then_the_rate() -> None:
    rule = TypeRule(name="t", concurrency=3, per_key={"b": 2, "a": 1, "c": 1}, rate=Rate(count=4, period=1))

    assert list(limits.slots_of(rule, a_run(b="y", a="x")).items()) == [
        ("type:t a=x", 1),
        ("type:t b=y", 2),
        ("type:t", 3),
        ("rate:t", 4),
    ]


@pytest.mark.parametrize(
    ("slot", "is_of"),
    [("type:t", True), ("type:t a=b", True), ("rate:t", True), ("type:tt", False), ("rate:t a=b", False)],
)
def test_the_type_of_a_slot(slot: str, is_of: bool) -> None:
    assert limits.is_of(slot, "t") is is_of
