"""Keyword arguments of steps: checked when a step is bound, and applied when workflow code calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.errors import InvalidRequest
from holdfast.core.suggestion import refuse_unknown


def check_arguments(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that a function could not be called with, judged by their number and names."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function of a C library may have no signature; then calling it raises the error
    parameters = signature.parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        names = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
        if not kwargs.keys() <= set(names):
            refuse_unknown("parameter", kwargs, names, of=name)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidRequest(f"{name}{signature}: {error}") from None


def with_keywords(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function with these keyword arguments bound. The caller passes the positional ones."""
    if inspect.iscoroutinefunction(function):

        async def called(*args: Any) -> Any:
            return await function(*args, **kwargs)

        return called
    return lambda *args: function(*args, **kwargs)
