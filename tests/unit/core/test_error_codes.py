"""The table of error codes is complete, and its values are usable."""

from __future__ import annotations

import inspect
from http import HTTPStatus

import pytest

from holdfast.cli.exits import ExitCode, exit_code_of
from holdfast.core import errors
from holdfast.core.errors import ERROR_CODES, HoldfastError, RunNotFound, StepTimeout, WorkflowError, error_code_of

PUBLIC = [
    kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HoldfastError) and not issubclass(kind, WorkflowError) and not name.startswith("_")
]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_every_error_has_a_row_of_its_own(kind: type[HoldfastError]) -> None:
    assert kind in ERROR_CODES


def test_codes_are_unique_and_statuses_and_exit_codes_exist() -> None:
    rows = ERROR_CODES.values()
    assert len({row.code for row in rows}) == len(rows)
    for row in rows:
        assert HTTPStatus(row.status)
        assert ExitCode(row.exit)


def test_an_error_without_a_row_has_that_of_its_base() -> None:
    class Unlisted(RunNotFound):
        pass

    assert error_code_of(Unlisted("x")) == ERROR_CODES[RunNotFound]
    assert ERROR_CODES[WorkflowError] == next(ERROR_CODES[kind] for kind in StepTimeout.__mro__ if kind in ERROR_CODES)


def test_a_bug_has_no_code() -> None:
    assert error_code_of(KeyError("x")) is None
    assert exit_code_of(KeyError("x")) is None
