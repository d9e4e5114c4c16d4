"""The order of a pipeline's steps: checks that a step can take the result of the step before it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

from holdfast.core.codec import name_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.signature import hints_of
from holdfast.runner.pipeline_step import PipelineStep

_NUMBERS = frozenset({bool, int, float, complex})


def check_follows(type: str, before: PipelineStep, step: PipelineStep) -> None:
    """Refuse a step that cannot be called with one argument, or not with what the step before it returns.

    Only annotations that clearly exclude each other are refused, such as `str` and `int`.
    """
    try:
        signature = inspect.signature(step.function)
    except (TypeError, ValueError):
        return  # a function of a C library may have no signature; then calling it raises the error
    try:
        bound = signature.bind(*[None] * (step.skip + 1))
    except TypeError as error:
        must = "ctx and one argument" if step.skip else "one argument"
        raise InvalidRequest(
            f"pipeline {type!r}: step {step.name!r} must take {must}, the result of step {before.name!r}; "
            f"it is {step.name}{signature} ({error})"
        ) from None
    name = list(bound.arguments)[-1]
    parameter = signature.parameters[name]
    wanted = hints_of(step.function).get(name, Any)
    given = hints_of(before.function).get("return", Any)
    if parameter.default is None or _may_fit(given, wanted):
        return
    raise InvalidRequest(
        f"pipeline {type!r}: step {before.name!r} returns {name_of(given)}, but the next step {step.name!r} takes "
        f"{name!r} as {name_of(wanted)}"
    )


def _may_fit(given: Any, wanted: Any) -> bool:
    """True unless no alternative of one hint can be an instance of an alternative of the other."""
    return any(_is_near(one, other) for one in _alternatives(given) for other in _alternatives(wanted))


def _alternatives(hint: Any) -> Iterator[Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _alternatives(get_args(hint)[0])
    elif origin in (Union, types.UnionType):
        for one in get_args(hint):
            yield from _alternatives(one)
    else:
        yield hint


def _is_near(one: Any, other: Any) -> bool:
    first, second = _class_of(one), _class_of(other)
    if first is None or second is None or _NUMBERS.issuperset((first, second)):
        return True
    try:
        return issubclass(first, second) or issubclass(second, first)
    except TypeError:  # some classes, such as protocols with attributes, cannot be compared
        return True


def _class_of(hint: Any) -> type | None:
    """Return the class of a hint, or None if only a type checker can judge it."""
    if hint is Any or getattr(hint, "_is_protocol", False):
        return None
    if is_typeddict(hint):
        return dict
    found = get_origin(hint) or hint
    return found if isinstance(found, type) else None
