"""What a flow computes: each construct gives the value of Python."""
# ruff: noqa: E501 - a program stands on one line

from __future__ import annotations

from typing import Any

import pytest

from holdfast.flows.requests import FlowRaised
from tests.rows import each_row
from tests.unit.flows.actor import Actor, body, error_of, result_of

PROGRAMS: dict[str, tuple[str, Any]] = {
    "finally overrides a return": ("try:\n    return 1\nfinally:\n    return 2", 2),
    "finally runs after return": (
        "x = []\ntry:\n    try:\n        return x\n    finally:\n        x.append(1)\nfinally:\n    x.append(2)",
        [1, 2],
    ),
    "break through finally": (
        "x = []\nfor i in [1, 2]:\n    try:\n        break\n    finally:\n        x.append(i)\nreturn x",
        [1],
    ),
    "continue through finally": (
        "x = []\nfor i in [1, 2]:\n    try:\n        continue\n    finally:\n        x.append(i)\nreturn x",
        [1, 2],
    ),
    "break in finally drops the error": (
        "for i in [1]:\n    try:\n        1 / 0\n    finally:\n        break\nreturn 'ok'",
        "ok",
    ),
    "else of try": (
        "x = []\ntry:\n    x.append(1)\nexcept KeyError:\n    x.append(2)\nelse:\n    x.append(3)\nreturn x",
        [1, 3],
    ),
    "error in else is not caught": (
        "try:\n    try:\n        pass\n    except KeyError:\n        return 1\n    else:\n        {}['a']\nexcept KeyError:\n    return 2",
        2,
    ),
    "error in except": (
        "try:\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        {}['a']\nexcept KeyError:\n    return 'key'",
        "key",
    ),
    "raise again": (
        "try:\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        raise\nexcept ZeroDivisionError as e:\n    return e['type']",
        "ZeroDivisionError",
    ),
    "raise of the outer error after an inner one": (
        "try:\n    try:\n        {}['a']\n    except KeyError:\n        try:\n            1 / 0\n        except ZeroDivisionError:\n            pass\n        raise\nexcept KeyError as e:\n    return e['message']",
        "'a'",
    ),
    "error of its own": (
        "try:\n    raise Error('late', 'too late')\nexcept Error as e:\n    return e",
        {"type": "Error", "message": "too late", "code": "late"},
    ),
    "else of for": ("for i in []:\n    pass\nelse:\n    return 'else'", "else"),
    "else of while after break": ("while True:\n    break\nelse:\n    return 1\nreturn 2", 2),
    "aliasing": ("a = []\nb = a\nb += [1]\nb.append(2)\nreturn a", [1, 2]),
    "no aliasing of a sum": ("a = []\nb = a\nb = b + [1]\nreturn a", []),
    "list appended while iterated": (
        "x = [1]\nfor i in x:\n    if len(x) < 4:\n        x.append(i + 1)\nreturn x",
        [1, 2, 3, 4],
    ),
    "chained comparison": ("return [1 < 2 < 3, 1 < 3 < 2, 3 > 2 == 2]", [True, False, True]),
    "short circuit": ("return [0 or [], '' and 1 / 0, 1 and 2, None or False]", [[], "", 2, False]),
    "unpacking": ("a, (b, c) = 1, [2, 3]\na, b = b, a\nreturn [a, b, c]", [2, 1, 3]),
    "comprehension scope": ("i = 7\nx = [i for i in range(3)]\nreturn [i, x]", [7, [0, 1, 2]]),
    "nested comprehension": ("return [[j for j in range(i)] for i in range(3)]", [[], [0], [0, 1]]),
    "two clauses": ("return [f'{a}{b}' for a in 'xy' for b in range(2) if b]", ["x1", "y1"]),
    "dict comprehension": ("return {k.upper(): v + 1 for k, v in {'a': 1}.items()}", {"A": 2}),
    "integers stay integers": ("return [7 // 2, -7 // 2, -7 % 3, 2 ** 70, 7 / 2, 1.0]", [3, -4, 2, 2**70, 3.5, 1.0]),
    "zip and enumerate": (
        "return [[i, a, b] for i, (a, b) in enumerate(zip('ab', [1, 2, 3]), 1)]",
        [[1, "a", 1], [2, "b", 2]],
    ),
    "formats": (
        'return f\'{3.14159:.2f}|{5:03d}|{"a":>3}|{1234567:,}|{"x"!r}|{0.5:%}\'',
        "3.14|005|  a|1,234,567|'x'|50.000000%",
    ),
    "constants of the module": ("return RATE * 2", 3.0),
    "helpers": ("return [double(4), double(n=5), add(b=1, a=2), add(1)]", [8, 10, [2, 1], [1, 9]]),
    "recursion": ("return fact(20)", 2432902008176640000),
    "lengths of time": ("return [days(2), hours(1.5), minutes(3)]", [172_800, 5_400.0, 180]),
    "deleted items": ("x = {'a': 1, 'b': 2}\ny = [1, 2, 3]\ndel x['a'], y[0]\nreturn [x, y]", [{"b": 2}, [2, 3]]),
    "chained assignment": ("a = b = []\na.append(1)\nreturn b", [1]),
    "range from the end": ("return [x for x in reversed(range(0, 10, 3))]", [9, 6, 3, 0]),
    "in": (
        "return [2 in (1, 2), 'a' not in {'a': 1}, 'b' in 'abc', 3 in range(3), 1 in {'a': 1}.values()]",
        [True, False, True, False, True],
    ),
    "slices": (
        "x = [1, 2, 3, 4]\nreturn [x[1:], x[:-1], x[::-1], 'abc'[::2], x[-2:][0]]",
        [[2, 3, 4], [1, 2, 3], [4, 3, 2, 1], "ac", 3],
    ),
    "a value that contains itself": ("a = [1]\na.append(a)\nreturn len(a[1][1])", 2),
}
PRELUDE = """
RATE = 1.5

def double(n):
    return n * 2

def add(a, b=9):
    return [a, b]

def fact(n):
    return 1 if n < 2 else n * fact(n - 1)

"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_gives_the_value_of_python(name: str) -> None:
    text, expected = PROGRAMS[name]

    assert result_of(PRELUDE + body(text)) == expected


@each_row(
    ("text", "kind", "message"),
    [
        ("return 1 + 'a'", "TypeError", "unsupported operand type(s) for +: 'int' and 'str'"),
        ("return {}['user']", "KeyError", "'user'"),
        ("return [][3]", "IndexError", "list index out of range"),
        ("return 1 // 0", "ZeroDivisionError", "division"),
        ("return int('x')", "ValueError", "invalid literal"),
        ("return sorted([1, 'a'])", "TypeError", "not supported between"),
        ("a, b = [1]", "ValueError", "not enough values"),
        ("return None.upper()", "AttributeError", "'NoneType' object has no attribute 'upper'"),
        ("if False:\n    x = 1\nreturn x", "UnboundLocalError", "the variable x has no value"),
        ("x = {'a': 1}\nfor k in x:\n    x['b'] = 1", "RuntimeError", "changed size"),
        ("await 5", "TypeError", "can't be used in 'await'"),
        ("assert 1 == 2, 'never'", "AssertionError", "never"),
        ("x = {}\nx[1] = 2", "TypeError", "keys of a dict are text"),
        ("return 1e308 * 10", "OverflowError", "too large for a float"),
        ("return (-8) ** 0.5", "ValueError", "complex"),
        ("return float('nan')", "ValueError", "not finite"),
        ("return [start('x')]", "TypeError", "a handle has no JSON form"),
        ("a = []\na.append(a)\nreturn a", "ValueError", "nested deeper than 64"),
        ("a = []\na.append(a)\nreturn a == a[0]", "ValueError", "nested deeper than 64"),
        ("return str(now) if False else '%s'[0:9] + 1", "TypeError", "can only concatenate"),
    ],
)
def test_error_has_the_kind_and_message_of_python(text: str, kind: str, message: str) -> None:
    found, text_of_error = error_of(body(text.replace("str(now)", "str(1)")))

    assert found == kind
    assert message in text_of_error


def test_error_names_line_column_and_source_line() -> None:
    source = "def f(x):\n    return x / 0\n\nasync def main():\n    return f(2)\n"

    kind, message = error_of(source)

    assert kind == "ZeroDivisionError"
    assert message == "division by zero (line 2, column 12: return x / 0)"


@pytest.mark.parametrize("text", ["return e", "e = e"])
def test_name_of_a_caught_error_is_removed_after_its_handler(text: str) -> None:
    kind, message = error_of(body(f"try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    pass\n{text}"))

    assert (kind, "the variable e has no value" in message) == ("UnboundLocalError", True)


@pytest.mark.parametrize(
    "program",
    [
        "try:\n    {}['a']\nexcept ValueError:\n    return 1",
        "try:\n    {}['a']\nfinally:\n    x = 1",
        "try:\n    {}['a']\nexcept KeyError:\n    raise",
        "try:\n    try:\n        pass\n    finally:\n        {}['a']\nexcept ValueError:\n    return 1",
    ],
)
def test_an_error_that_passes_a_handler_names_the_line_that_raised_it(program: str) -> None:
    _, message = error_of(body(program))

    line = body(program).split("\n").index(next(line for line in body(program).split("\n") if "{}" in line)) + 1
    assert message == f"'a' (line {line}, column {9 if line == 3 else 13}: {{}}['a'])"


def test_a_traceback_has_each_frame_once_if_an_error_passes_handlers() -> None:
    helper = "def inner():\n    try:\n        return {}['a']\n    except KeyError:\n        raise\n\n\n"
    progress = Actor(helper + body("try:\n    return inner()\nfinally:\n    x = 1")).run()

    assert isinstance(progress, FlowRaised)
    places = [line.strip() for line in progress.error.traceback.split("\n") if line.startswith("  line ")]
    assert places == ["line 10, column 16, in main", "line 3, column 16, in inner"]
