"""The context parameter: the first parameter of a workflow, which is not part of its payload."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from holdfast.core.codec import name_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.signature import hints_of
from holdfast.runner.context import Context
from holdfast.runner.sync_context import SyncContext
from holdfast.runner.task_context import TaskContext

_CONTEXTS = (Context, SyncContext, TaskContext)


def check_context(type: str, function: Callable[..., Any], *, is_async: bool) -> None:
    """Refuse a workflow whose first parameter is not its context. A parameter without annotation is accepted.

    A `def` workflow may annotate it as `Context`, because its `SyncContext` has the same operations. An `async def`
    workflow with a `SyncContext` is refused: its waits would not wait.
    """
    own = Context if is_async else SyncContext
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return  # `Signature` raises the error later
    hints = hints_of(function)
    for name in parameters[1:]:
        if hints.get(name) in _CONTEXTS:
            raise InvalidRequest(f"workflow {type!r} takes its context as {name!r}; it must be the first parameter")
    if not parameters:
        call = f"{name_of(function)}(ctx: {own.__name__})"
        raise InvalidRequest(f"workflow {type!r} has no parameters; the first one must be its context: {call}")
    hint = hints.get(parameters[0], Any)
    if is_async and hint is SyncContext:
        raise InvalidRequest(
            f"workflow {type!r} takes a SyncContext, but is an `async def` function, whose context is a Context; "
            "annotate a Context, or make it a `def` function"
        )
    if not any(accepts_context(hint, context) for context in {own, Context}):
        raise InvalidRequest(
            f"workflow {type!r} declares its first parameter {parameters[0]!r} as {name_of(hint)}, but the first "
            f"parameter of a workflow is its context: put `ctx: {own.__name__}` before it, or make it a task"
        )


def accepts_context(hint: Any, context: type) -> bool:
    """True if a parameter with this type hint accepts a context."""
    if hint is Any or isinstance(hint, TypeVar):
        return True
    origin = get_origin(hint)
    if origin is Annotated:
        return accepts_context(get_args(hint)[0], context)
    if origin in (Union, types.UnionType):
        return any(accepts_context(each, context) for each in get_args(hint))
    if not isinstance(hint, type):
        return False
    is_protocol = getattr(hint, "_is_protocol", False)  # only a type checker can compare a protocol
    return is_protocol or issubclass(context, hint) or issubclass(hint, context)
