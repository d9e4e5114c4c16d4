"""Hostile programs end with a typed error within their budget, and never with an error of the host."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from holdfast.flows.limits import FlowLimits
from holdfast.flows.requests import FlowRaised, FlowReturned, Waiting
from tests.unit.flows.actor import Actor, body

LIMITS = FlowLimits(max_instructions=100_000)
MOST_MEMORY = 60_000_000
"""A string may have a million characters of four bytes, and the encoder copies the state several times."""

BOMBS = {
    "endless loop": ("while True:\n    pass", "max_instructions"),
    "long text": ("return 'a' * 10 ** 9", "string_characters"),
    "text that doubles": ("s = 'abc'\nwhile True:\n    s += s", "string_characters"),
    "long list": ("return [0] * 10 ** 9", "collection_items"),
    "long list, the other way": ("return 10 ** 9 * [0]", "collection_items"),
    "list that doubles": ("x = [1]\nwhile True:\n    x += x", "collection_items"),
    "list times in place": ("x = [1]\nx *= 10 ** 9", "collection_items"),
    "power": ("return 10 ** 10 ** 10", "integer_bits"),
    "power just above the limit": ("return 2 ** 14_000", "integer_bits"),
    "power of three above the limit": ("return 3 ** 8_900", "integer_bits"),
    "negative power": ("return (-2) ** 10 ** 30", "integer_bits"),
    "tower of powers": ("return 2 ** 2 ** 2 ** 2 ** 2 ** 2", "integer_bits"),
    "square": ("x = 3\nwhile True:\n    x *= x", "integer_bits"),
    "sum of large integers": ("return sum([2 ** 13999] * 30000)", "integer_bits"),
    "list of a range": ("return list(range(10 ** 9))", "collection_items"),
    "sum of a range": ("return sum(range(10 ** 12))", "collection_items"),
    "sorted range": ("return sorted(range(10 ** 12))", "collection_items"),
    "maximum of a range": ("return max(range(10 ** 12))", "collection_items"),
    "any of zeros": ("return any(zip(range(10 ** 12), range(10 ** 12)))", "collection_items"),
    "join": ("return ('a' * 999999).join(['x'] * 1000)", "string_characters"),
    "join of long texts": ("return ''.join(['a' * 999999] * 10)", "string_characters"),
    "replace": ("return ('a' * 10000).replace('a', 'b' * 10000)", "string_characters"),
    "replace nothing": ("return ('a' * 10000).replace('', 'b' * 10000)", "string_characters"),
    "padding": ("return 'a'.zfill(10 ** 9)", "string_characters"),
    "centre": ("return 'a'.center(10 ** 12)", "string_characters"),
    "text of nested lists": ("a = ['x' * 999]\nfor i in range(50):\n    a = [a, a]\nreturn str(a)", "value_nodes"),
    "comparison of nested lists": (
        "a = []\nb = []\nfor i in range(60):\n    a = [a, a]\n    b = [b, b]\nreturn a == b",
        "value_nodes",
    ),
    "membership in nested lists": (
        "a = []\nb = []\nfor i in range(60):\n    a = [a, a]\n    b = [b, b]\nreturn a in [b]",
        "value_nodes",
    ),
    "result of nested lists": ("a = []\nfor i in range(60):\n    a = [a, a]\nreturn a", "value_nodes"),
    "comprehension": ("return [i for i in range(10 ** 9)]", "max_instructions|collection_items"),
    "nested comprehension": (
        "return [[0] * 1000 for i in range(10 ** 9)]",
        "max_instructions|collection_items|state_bytes",
    ),
    "state that grows": (
        "x = []\nwhile True:\n    x.append('a' * 100000 + str(len(x)))",
        "state_bytes|max_instructions",
    ),
    "wide texts": ("x = []\nwhile True:\n    x.append('\U0001f600' * 900000 + str(len(x)))", "state_bytes"),
    "slices of a wide text": ("s = '\U0001f600' * 900000\nx = []\nwhile True:\n    x.append(s[1:])", "state_bytes"),
    "join of wide texts": (
        "s = ['\U0001f600' * 9000] * 100\nx = []\nwhile True:\n    x.append(''.join(s))",
        "state_bytes",
    ),
    "join that makes a text wide": (
        "s = ['a' * 9000] * 100 + ['\U0001f600']\nx = []\nwhile True:\n    x.append(''.join(s))",
        "state_bytes",
    ),
    "wide padding": ("x = []\nwhile True:\n    x.append('a'.ljust(900000, '\U0001f600'))", "state_bytes"),
    "wide f-strings": (
        "x = []\ns = '\U0001f600' * 900000\nwhile True:\n    x.append(f'{s}{len(x)}')",
        "state_bytes",
    ),
    "replacement with wide texts": (
        "x = []\ns = 'a' * 900000\nwhile True:\n    x.append(s.replace('a', '\U0001f600'))",
        "state_bytes",
    ),
    "control characters": ("x = []\nwhile True:\n    x.append('\\x01' * 900000 + str(len(x)))", "state_bytes"),
    "dict that grows": (
        "x = {}\ni = 0\nwhile True:\n    x[f'{i}'] = i\n    i += 1",
        "max_instructions|collection_items",
    ),
    "recursion": ("return down(0)", "call_depth"),
    "mutual recursion": ("return await left(0)", "call_depth"),
    "many handles": ("x = []\nwhile True:\n    x.append(start('x.v1'))", "open_handles|max_instructions|state_bytes"),
    "many paths": ("while True:\n    left(1)", "paths"),
    "many branches": ("h = sleep(1)\nawait join([h] * 20000)", "branches"),
    "many map items": ("await map('x', [{}] * 20000)", "map_items"),
    "deep groups": ("h = sleep(1)\nfor i in range(3000):\n    h = race([h])\nawait h", ""),
    "large payload": ("await call('x', p=['a' * 900000] * 9)", "value_bytes"),
    "endless handlers": (
        "while True:\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        pass",
        "max_instructions",
    ),
    "endless finally": (
        "while True:\n    try:\n        'a' * 10 ** 9\n    finally:\n        continue",
        "max_instructions",
    ),
    "integer of text": ("return int('9' * 100000, 36)", "integer_bits"),
    "endless spawning": ("await grow(0)", "paths|open_handles|max_instructions|call_depth"),
}
HELPERS = """
def down(n):
    return down(n + 1)

async def left(n):
    return await right(n)

async def right(n):
    return await left(n)

async def grow(n):
    a = grow(n + 1)
    b = grow(n + 1)
    return [await a, await b]

"""


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_program_ends_with_a_typed_error(name: str) -> None:
    text, limits = BOMBS[name]
    actor = Actor(HELPERS + body(text), LIMITS)

    tracemalloc.start()
    try:
        progress = actor.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    if limits:
        assert isinstance(progress, FlowRaised)
        assert progress.error.type == "LimitExceeded", progress.error
        assert any(limit in progress.error.message for limit in limits.split("|")), progress.error
    assert peak < MOST_MEMORY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return round(7, -10 ** 9)", 0),
        ("return round(7.5, -10 ** 9)", 0.0),
        ("return round(7.5, 10 ** 9)", 7.5),
        ("return 1 ** 10 ** 12", 1),
        ("return (-1) ** (10 ** 12 + 1)", -1),
        ("return 0 ** 10 ** 30", 0),
        ("return 2 ** 13_999 % 1_000_007", 2**13_999 % 1_000_007),
        ("return 10 ** 4_000 % 1_000_007", 10**4_000 % 1_000_007),
        ("return (-3) ** 8_001 % 1_000_007", (-3) ** 8_001 % 1_000_007),
        ("return [0] * -10 ** 12", []),
        ("return 'a' * -1", ""),
        ("return 10 ** 18 in range(0, 10 ** 18, 7)", False),
        ("return len(range(10 ** 15))", 10**15),
        ("for i in range(10 ** 15):\n    if i == 3:\n        return i", 3),
        ("a = [1, 2]\nreturn a[-10 ** 30:10 ** 30]", [1, 2]),
    ],
)
def test_large_numbers_where_python_needs_no_time(text: str, expected: Any) -> None:
    progress = Actor(body(text), LIMITS).run()

    assert isinstance(progress, FlowReturned)
    assert json.loads(progress.result) == expected


def test_a_limit_cannot_be_caught_but_finally_runs() -> None:
    source = body(
        "try:\n    x = 'a' * 10 ** 9\nexcept (ValueError, TypeError, Error):\n    return 1\nfinally:\n    log('end')"
    )
    actor = Actor(source, LIMITS)

    progress = actor.run()

    assert isinstance(progress, FlowRaised)
    assert [type(request).__name__ for request in actor.asked] == ["WriteLog"]


def test_a_result_from_outside_that_is_too_large_is_an_error_of_the_flow() -> None:
    actor = Actor(body("return len(await call('x'))"), FlowLimits(value_bytes=1_000))
    assert actor.run() == Waiting()

    progress = actor.done(1, ["a" * 2_000])

    assert isinstance(progress, FlowRaised)
    assert "value_bytes" in progress.error.message


def test_a_deep_result_from_outside_is_an_error_of_the_flow() -> None:
    deep: Any = []
    for _ in range(70):
        deep = [deep]
    actor = Actor(body("return await call('x')"))
    actor.run()

    progress = actor.done(1, deep)

    assert isinstance(progress, FlowRaised)
    assert "nested deeper than 64" in progress.error.message
