"""Mutants stay valid: each still fits the code, and the changed code still compiles."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.catcher import CATCHERS, Catcher
from tests.mutants.mutant import PACKAGE, PROJECT, Catch, Edit, Mutant

_PARTS = 4


@pytest.mark.parametrize("part", range(_PARTS))
def test_mutants_fit_the_code(part: int) -> None:
    for mutant in MUTANTS[part::_PARTS]:
        for path, text in mutant.texts().items():
            if path.endswith(".py"):
                compile(text, f"{path} with the mutant {mutant.name}", "exec")


def test_each_mutant_has_a_unique_name_and_a_catcher() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.caught_by for mutant in MUTANTS)
    assert {catch.catcher for mutant in MUTANTS for catch in mutant.caught_by} == CATCHERS.keys()


def test_each_mutant_names_an_existing_test_that_must_catch_it() -> None:
    there = {name: names_in(catcher) for name, catcher in CATCHERS.items()}
    unknown = [
        (mutant.name, name)
        for mutant in MUTANTS
        for catch in mutant.caught_by
        for name in _named(catch)
        if not any(name in test for test in there[catch.catcher])
    ]

    assert [mutant.name for mutant in MUTANTS if not any(map(_named, mutant.caught_by))] == []
    assert unknown == []


def _named(catch: Catch) -> Sequence[str]:
    """Return the tests that must catch a mutant."""
    return catch.names or CATCHERS[catch.catcher].names


def names_in(catcher: Catcher) -> frozenset[str]:
    """Return the names of the tests in the files of a catcher, without importing them."""
    paths = [PROJECT / place.partition("::")[0] for place in catcher.places]
    files = {file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])}
    if any(file.name.startswith("test_contract_") for file in files):  # their tests are inherited
        files |= set((PACKAGE / "testing" / "contract").glob("*.py"))
    return frozenset().union(*map(_names_in_file, files))


@cache
def _names_in_file(file: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    functions = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


@pytest.mark.parametrize("text", ["", "a = 1\na = 1\n"])
def test_a_text_that_does_not_occur_exactly_once_is_refused_and_named(text: str) -> None:
    mutant = Mutant(name="rotten", breaks="", edits=(Edit("core/rules.py", "no such text", ""),), caught_by=())

    with pytest.raises(ValueError, match="'a = 1'"):
        Edit("core/rules.py", "a = 1", "a = 2").applied_to(text)
    with pytest.raises(ValueError, match=r"mutant 'rotten' fits the code no more: core/rules\.py has this 0 times"):
        mutant.texts()
