"""Mutants do not rot: each still fits the code, and changes it into something that is code."""

from __future__ import annotations

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.catcher import CATCHERS
from tests.mutants.mutant import Edit, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code(mutant: Mutant) -> None:
    for path, text in mutant.texts().items():
        if path.endswith(".py"):
            compile(text, path, "exec")


def test_each_has_a_name_of_its_own_and_somebody_who_is_to_notice_it() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.caught_by for mutant in MUTANTS)
    assert {catch.catcher for mutant in MUTANTS for catch in mutant.caught_by} == CATCHERS.keys()


@pytest.mark.parametrize("text", ["", "a = 1\na = 1\n"])
def test_what_does_not_stand_there_exactly_once_is_refused_and_named(text: str) -> None:
    mutant = Mutant(name="rotten", breaks="", edits=(Edit("core/rules.py", "no such text", ""),), caught_by=())

    with pytest.raises(ValueError, match="'a = 1'"):
        Edit("core/rules.py", "a = 1", "a = 2").applied_to(text)
    with pytest.raises(ValueError, match=r"mutant 'rotten' fits the code no more: core/rules\.py has this 0 times"):
        mutant.texts()
