"""The steps of a pipeline: plain functions, each a durable step, and functions that take `ctx` as workflow code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast.core.codec import name_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.location import check_name
from holdfast.core.signature import hints_of, result_codec
from holdfast.runner.arguments import with_keywords
from holdfast.runner.code_requests import CodeRequests
from holdfast.runner.context import Context
from holdfast.runner.context_parameter import accepts_context
from holdfast.runner.definition import Definition
from holdfast.runner.operation import DEFAULT_STEP_OPTIONS, StepOptions, step_options
from holdfast.runner.step import Step
from holdfast.runner.sync_context import SyncContext


class BodyStep:
    """A step of a pipeline that is a plain function. It is executed, retried and recorded like `ctx.step`."""

    skip = 0
    is_blocking = False

    def __init__(self, name: str, function: Callable[..., Any], options: StepOptions) -> None:
        self.name = name
        self.function = function
        self.codec = result_codec(function)
        self._options = options

    def perform(
        self, requests: CodeRequests, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that executes the step."""
        function = with_keywords(self.function, kwargs) if kwargs else self.function
        return requests.step(self.name, function, args, self.codec, self._options)


class CodeStep:
    """A step of a pipeline that takes `ctx`: a part of the workflow code, whose operations are below its name.

    Nothing records the step itself. It is replayed like all workflow code.
    """

    skip = 1

    def __init__(self, name: str, function: Callable[..., Any], *, is_async: bool) -> None:
        self.name = name
        self.function = function
        self.codec = result_codec(function)
        self.is_blocking = not is_async
        self._begin = function if is_async else _blocking(name, function)

    async def perform(self, requests: CodeRequests, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function in a scope of its own."""
        loop = requests.loop
        with loop.within(loop.scope.part(self.name)):
            return await self._begin(requests.context, *args, **kwargs)


PipelineStep = BodyStep | CodeStep


def pipeline_step(type: str, function: Any, name: str | None, options: Mapping[str, Any]) -> PipelineStep:
    """Return a step of the pipeline `type`. Raises `InvalidRequest` if the function cannot be one."""
    if isinstance(function, Definition):
        raise InvalidRequest(
            f"pipeline {type!r}: {function!r} has runs of its own; declare a step that calls it: "
            "`async def step(ctx, value): return await ctx.call(…, value)`"
        )
    plain = function.function if isinstance(function, Step) else function
    if not callable(plain):
        raise InvalidRequest(f"pipeline {type!r}: expected functions as its steps, got {plain!r}")
    chosen = check_name(name or _name_of(function), "step name")
    if not _takes_context(type, chosen, plain):
        declared = function.options if isinstance(function, Step) else DEFAULT_STEP_OPTIONS
        return BodyStep(chosen, plain, step_options(declared, **options) if options else declared)
    _refuse_options(type, chosen, function, options)
    return CodeStep(chosen, plain, is_async=inspect.iscoroutinefunction(plain))


def _takes_context(type: str, name: str, function: Callable[..., Any]) -> bool:
    """True if the first parameter of a step is its context: it is named `ctx`, or annotated as a context."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False  # a function of a C library may have no signature
    hints = hints_of(function)
    what = f"pipeline {type!r}: step {name!r}"
    if misplaced := [one for one in parameters[1:] if hints.get(one) in (Context, SyncContext)]:
        raise InvalidRequest(f"{what} takes its context as {misplaced[0]!r}; it must be the first parameter")
    hint = hints.get(parameters[0], Any) if parameters else None
    if not parameters or (parameters[0] != "ctx" and hint not in (Context, SyncContext)):
        return False
    if inspect.iscoroutinefunction(function) and hint is SyncContext:
        raise InvalidRequest(
            f"{what} takes a SyncContext, but is an `async def` function, whose context is a Context; "
            "annotate a Context, or make it a `def` function"
        )
    if not any(accepts_context(hint, context) for context in (Context, SyncContext)):
        raise InvalidRequest(
            f"{what} has a first parameter `ctx`, which gets the context of the workflow, but declares it as "
            f"{name_of(hint)}: declare it as Context, or give the parameter another name"
        )
    return True


def _refuse_options(type: str, name: str, function: Any, options: Mapping[str, Any]) -> None:
    why = (
        "it takes ctx, so it is workflow code, which is replayed and is not an attempt that could be repeated, timed "
        "or undone; call ctx.step inside it with these options, or do not take ctx"
    )
    if options:
        raise InvalidRequest(f"pipeline {type!r}: step {name!r} cannot have {', '.join(options)}: {why}")
    if isinstance(function, Step):
        raise InvalidRequest(f"pipeline {type!r}: step {name!r} cannot be an @hf.step function: {why}")


def _name_of(function: Any) -> str:
    if isinstance(function, Step):
        return function.name
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def _blocking(name: str, function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a `def` function as a coroutine function. It may wait, in a fiber of its own."""
    try:
        from holdfast.runner.blocking import run_blocking
    except ImportError as error:
        raise InvalidRequest(
            f"step {name!r} is a plain `def` function with a context, which needs greenlet ({error}): "
            "pip install holdfast[sync], or make it an `async def` function"
        ) from error

    def begin(context: Context, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        return run_blocking(function, SyncContext(context), *args, **kwargs)

    return begin
