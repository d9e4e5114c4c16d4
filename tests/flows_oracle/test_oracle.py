"""CPython is the oracle: random programs give the same result, the same kind of error and the same calls.

The language is that of CPython 3.11 on every Python. Later versions differ in details: a slice of a dict raises
KeyError, and `sort(reverse="x")` is accepted. There a program is compared with itself, saved and not saved.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.duration import lasting
from tests.flows_oracle.generator import Generator
from tests.flows_oracle.performer import Performance
from tests.flows_oracle.reference import GaveUp, Reference
from tests.plugin.tiers import amount

ARGUMENTS: list[dict[str, Any]] = [
    {"a": 3, "b": "hi", "c": [1, 2, 3]},
    {"a": "x", "b": 2.5, "c": {"x": 1, "y": [2]}},
    {"a": 0, "b": -4},
]
NOT_COMPARED = [("raised", "LimitExceeded"), ("raised", "RecursionError")]
PARTS = 4


@lasting(40)
@pytest.mark.both_tiers
@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_behave_as_in_cpython(part: int) -> None:
    compared = sum(_compare(seed) for seed in range(part, amount(short=160, long=6_000), PARTS))

    assert compared > amount(short=160, long=6_000) // PARTS // 2


@lasting(40)
@pytest.mark.both_tiers
@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_behave_the_same_when_saved_at_every_instruction(part: int) -> None:
    for seed in range(part + 100_000, 100_000 + amount(short=40, long=400), PARTS):
        source = Generator(seed).program()
        whole, cut = Performance(source), Performance(source)
        expected = whole.run(ARGUMENTS[seed % 3])
        if expected == ("raised", "LimitExceeded"):
            continue

        assert (cut.run(ARGUMENTS[seed % 3], budget=1, saves=True), cut.calls) == (expected, whole.calls), source


def _compare(seed: int) -> bool:
    source = Generator(seed).program()
    arguments = ARGUMENTS[seed % 3]
    performance = Performance(source)
    if sys.version_info[:2] != (3, 11):
        return _compare_with_itself(source, arguments, performance)
    found = performance.run(arguments, saves=seed % 2 == 0)
    reference = Reference(source)
    try:
        expected = reference.run(json.loads(json.dumps(arguments)))
    except (GaveUp, ValueError, TypeError):  # a value without JSON, such as inf, or a result that has none
        return False
    if found in NOT_COMPARED or expected in NOT_COMPARED or _leaves_json(performance, found):
        return False
    calls = [(type, json.loads(payload)) for type, payload in performance.calls]

    assert (found, calls) == (expected, [(type, json.loads(payload)) for type, payload in reference.calls]), source
    return True


def _compare_with_itself(source: str, arguments: dict[str, Any], performance: Performance) -> bool:
    whole = Performance(source)
    found, expected = performance.run(arguments, saves=True), whole.run(arguments)

    assert (found, performance.calls) == (expected, whole.calls), source
    return True


def _leaves_json(performance: Performance, found: tuple[str, Any]) -> bool:
    """True if the program made a value that is not JSON here: an infinite number, or one that nests too deeply."""
    return found == ("raised", "OverflowError") or "is nested deeper than" in performance.message
