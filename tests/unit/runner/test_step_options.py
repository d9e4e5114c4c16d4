"""Options of steps are checked where they are given, because a worker could not use wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import InvalidRequest, Registry, Retry
from holdfast.runner.operation import DEFAULT_STEP_OPTIONS, step_options
from tests.rows import each_row

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "timeout as text": ({"timeout": "30"}, "timeout='30': expected seconds or a timedelta"),
    "timeout as bool": ({"timeout": True}, "timeout=True: expected seconds or a timedelta"),
    "no time": ({"timeout": 0}, "timeout=0: expected a length of time greater than zero, or None"),
    "negative timedelta": ({"timeout": timedelta(seconds=-1)}, r"timeout=datetime.timedelta\(.*greater than zero"),
    "not a number": ({"timeout": math.nan}, "timeout=nan is not a length of time"),
    "for ever": ({"timeout": math.inf}, "timeout=inf is not a length of time"),
    "retry as number": ({"retry": 3}, r"retry=3: expected a Retry, such as Retry\(max_attempts=3\)"),
    "retry as class": ({"retry": Retry}, "retry=<class .*: expected a Retry"),
    "retry_timeout as text": ({"retry_timeout": "yes"}, "retry_timeout='yes': expected True or False"),
}


def declare_step(options: dict[str, Any]) -> object:
    return Registry().step("s", **options)


def declare_task(options: dict[str, Any]) -> object:
    return Registry().task("t", **options)


def give(options: dict[str, Any]) -> object:
    return step_options(DEFAULT_STEP_OPTIONS, **options)


@each_row("wrong", WRONG)
@each_row("declare", [declare_step, declare_task, give])
def test_a_wrong_option_is_refused_with_its_value_and_what_it_should_be(
    declare: Callable[[dict[str, Any]], object], wrong: str
) -> None:
    options, message = WRONG[wrong]
    with pytest.raises(InvalidRequest, match=message):
        declare(options)


def test_options_that_only_steps_have_are_checked_too() -> None:
    with pytest.raises(InvalidRequest, match="ephemeral=1: expected True or False"):
        declare_step({"ephemeral": 1})
    with pytest.raises(InvalidRequest, match="undo=5: expected a function"):
        declare_step({"undo": 5})


def test_an_unknown_option_is_distinguished_from_an_argument() -> None:
    with pytest.raises(InvalidRequest, match="unknown option city of a step; arguments of the function are positional"):
        give({"city": "Bonn"})


def test_a_timeout_may_be_a_timedelta() -> None:
    assert step_options(DEFAULT_STEP_OPTIONS, timeout=timedelta(seconds=1.5)).timeout == 1.5
    assert step_options(DEFAULT_STEP_OPTIONS, timeout=None).timeout is None


@pytest.mark.parametrize("limit", [0, "3", True, 2.0])
def test_a_crash_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(InvalidRequest, match="crash_limit="):
        Registry().task("t", crash_limit=limit)(lambda: 1)
