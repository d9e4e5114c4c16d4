"""The page about the language of flows has every construct, error and limit of the language."""

from __future__ import annotations

import ast

from holdfast.flows.checker import FunctionChecker
from holdfast.flows.compiler import compile_flow
from holdfast.flows.expression_checker import ExpressionChecker
from holdfast.flows.faults import CATCHABLE
from holdfast.flows.grammar import (
    BUILTINS,
    DURABLE,
    LAZY,
    METHOD_NAMES,
    REFUSED_EXPRESSIONS,
    REFUSED_FUNCTIONS,
    REFUSED_STATEMENTS,
)
from tests.docs.page import DOCS
from tests.docs.reference import flow_language
from tests.docs.reference.flow_language import ERRORS, EXPRESSIONS, INSIDE, LIMIT_CONSTANTS, RESULTS, STATEMENTS, SYNTAX


def test_the_page_is_made_from_the_tables() -> None:
    page = (DOCS / flow_language.FILE).read_text(encoding="utf-8")

    assert page == flow_language.flow_language(), "run `make reference`, and look at the difference"


def test_every_statement_is_documented() -> None:
    assert set(STATEMENTS) == checked_by(FunctionChecker, ast.stmt)


def test_every_expression_is_documented() -> None:
    assert set(EXPRESSIONS) | INSIDE == checked_by(ExpressionChecker, ast.expr)


def test_every_refusal_is_documented() -> None:
    assert set(SYNTAX) == {*REFUSED_STATEMENTS, *REFUSED_EXPRESSIONS}


def test_every_error_is_documented() -> None:
    assert set(ERRORS) == set(CATCHABLE)


def test_every_durable_call_has_its_result() -> None:
    assert set(RESULTS) == set(DURABLE)


def test_every_limit_of_a_text_is_documented() -> None:
    assert {name for name, _, _ in flow_language.constants()} == LIMIT_CONSTANTS


def test_every_function_is_on_the_page() -> None:
    page = flow_language.flow_language()

    assert [name for name in (*BUILTINS, *LAZY, *DURABLE) if f"| `{name}(" not in page] == []


def test_every_other_name_is_on_the_page() -> None:
    page = flow_language.flow_language()

    assert [name for name in (*METHOD_NAMES, *REFUSED_FUNCTIONS, *CATCHABLE) if f"`{name}`" not in page] == []


def test_every_builtin_has_a_sentence() -> None:
    assert [name for name, function in {**BUILTINS, **LAZY}.items() if not function.says] == []


def test_the_examples_of_the_page_are_flows() -> None:
    """Keep the fragments in the tables of statements and expressions honest."""
    compile_flow(FRAGMENTS)


def checked_by(checker: type, kind: type[ast.AST]) -> set[str]:
    """Return the names of the syntax nodes that a checker knows."""
    nodes = {one.__name__.lower(): one.__name__ for one in kind.__subclasses__()}
    methods = {name.removeprefix("_check_") for name in dir(checker) if name.startswith("_check_")}
    return {nodes[name] for name in methods & set(nodes)}


FRAGMENTS = '''
"""Uses the fragments that the page shows."""

LIMIT = 3


async def main(price: float, name: str = "tea", values: list = None):
    a = b = 1
    values = values or [1, 2, 3]
    values[0] = a
    values[0] -= 2
    a, b = [b, a]
    pairs = [["x", 1], ["y", 2]]
    del values[0]
    text = f"{price:.2f} for {name!r}"
    for place, item in enumerate(values):
        if item is None:
            continue
    else:
        log(text)
    while a < b <= LIMIT:
        break
    found = {key: value for key, value in pairs}
    try:
        assert found, "message"
        handle = helper(name)
        call("x.v1", {"options": 1})
        return await handle if not a else values[-1:3]
    except (KeyError, IndexError) as e:
        raise
    except ValueError:
        raise Error("code", "message")
    finally:
        pass


async def helper(name):
    return await call("mail.send.v1", to=name)
'''
