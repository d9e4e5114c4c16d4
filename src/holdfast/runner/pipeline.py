"""Pipelines: workflows that are an ordered list of named steps, which is known before they run."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Container, Coroutine, Iterator, Mapping
from functools import partial
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    is_typeddict,
    overload,
)

from holdfast.core.codec import name_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import Call, Signature, hints_of, result_codec
from holdfast.core.limits import first_line
from holdfast.core.location import check_name
from holdfast.core.model import Entry
from holdfast.core.rules import CRASH_LIMIT
from holdfast.runner.code_requests import CodeRequests
from holdfast.runner.context import Context, StepKeywords, requests_of
from holdfast.runner.definition import Definition, Step, accepts_context
from holdfast.runner.divergence import Requested
from holdfast.runner.operation import DEFAULT_STEP_OPTIONS, StepOptions, step_options, with_keywords
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


P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", Context, SyncContext)


class Pipeline(Definition, Generic[P, R]):
    """A registered pipeline. Its payload is the parameters of its first step, its result that of its last step.

    It is complete when it is first started, bound or scheduled, or when a worker starts. A later step is refused.
    """

    def __init__(
        self,
        type: str,
        *steps: Callable[..., Any],
        crash_limit: int = CRASH_LIMIT,
        strict: bool = True,
        description: str = "",
    ) -> None:
        super().__init__(type, _no_steps, skip=0, crash_limit=crash_limit)
        self.is_strict = strict
        self._description = first_line(description)
        self._steps: list[PipelineStep] = []
        self._is_complete = False
        for function in steps:
            self._add(function, None, {})

    @overload
    def step(self, function: F, /) -> F: ...
    @overload
    def step(self, name: str | None = None, /, **options: Unpack[StepKeywords]) -> Callable[[F], F]: ...
    def step(self, function: Any = None, /, **options: Unpack[StepKeywords]) -> Any:
        """Add a function as the next step: `@p.step`, or with options `@p.step("name", retry=…, timeout=…, undo=…)`.

        The function stays as it is. `StepKeywords` has the options. A step that takes `ctx` has none, because it is
        workflow code. Raises `InvalidRequest` if the step does not take the result of the step before it.
        """
        if callable(function):
            self._add(function, None, options)
            return function

        def declare(declared: F) -> F:
            self._add(declared, function, options)
            return declared

        return declare

    @property
    def plan(self) -> tuple[str, ...]:
        """The names of its steps, in order."""
        self._complete()
        return tuple(step.name for step in self._steps)

    @property
    def description(self) -> str:
        """The purpose of the pipeline, in one line."""
        return self._description

    @property
    def signature(self) -> Signature:
        """The parameters of the first step, and the result of the last one."""
        self._complete()
        return self._signature

    @signature.setter
    def signature(self, signature: Signature) -> None:
        self._signature = signature

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        args, kwargs = self.signature.decode(payload, f"payload of {self.type!r}")
        return self._run(requests_of(context), args, kwargs)

    async def _run(self, requests: CodeRequests, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result: Any = None
        for step in self._steps:
            result = await step.perform(requests, args, kwargs)
            args, kwargs = (result,), {}
        return result

    def deliver(self, operation: Coroutine[Any, Any, Any]) -> Any:
        if not any(step.is_blocking for step in self._steps):
            return operation
        from holdfast.runner.blocking import delivered  # the steps that block have imported it

        return delivered(operation)

    def hints(self, recorded: Entry | None, requested: Requested | None, known: Container[str]) -> tuple[str, ...]:
        if recorded is not None and "/" in recorded.location:  # inside a step with a context, ctx.version can help
            return super().hints(recorded, requested, known)
        call = f"hf.pipeline({json.dumps(self.type, ensure_ascii=False)}, …"
        lines = [f"{call})  # with its old steps, until its runs have ended; give the new steps a new type"]
        is_added = requested is not None and requested[0] not in known
        if is_added and recorded is not None and recorded.location in self.plan:
            lines.append(f"{call}, strict=False)  # executes the added steps in old runs too")
        return tuple(lines)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Bind arguments of the first step, by position or by name: `hf.start(signup.bind(email="a@b.org"))`."""
        return self.bound(args, kwargs)

    def __repr__(self) -> str:
        return f"<pipeline {self.type}>"

    def _add(self, function: Any, name: str | None, options: Mapping[str, Any]) -> None:
        step = pipeline_step(self.type, function, name, options)
        if self._is_complete:
            raise InvalidRequest(
                f"pipeline {self.type!r}: step {step.name!r} comes too late; a run or a worker was started already, "
                "with the steps before it. Declare all steps first"
            )
        if step.name in {each.name for each in self._steps}:
            raise InvalidRequest(
                f"pipeline {self.type!r} has two steps with the name {step.name!r}; give one of them another name, "
                'with @p.step("name") or @hf.step("name")'
            )
        if self._steps:
            check_follows(self.type, self._steps[-1], step)
        else:
            self.function, self.skip = step.function, step.skip
            self._signature = Signature(step.function, skip=step.skip)
        self._signature.result = step.codec
        self._steps.append(step)

    def _complete(self) -> None:
        if not self._steps:
            raise InvalidRequest(
                f"pipeline {self.type!r} has no steps; pass its functions to hf.pipeline, or declare them with @p.step"
            )
        self._is_complete = True


class PipelineOptions(TypedDict, total=False):
    """The options of a pipeline: keywords of `hf.pipeline`."""

    crash_limit: int
    """The number of worker crashes, without progress in between, that block a run."""
    strict: bool
    """True (default) blocks a run whose recorded steps are not the first steps of the pipeline.

    With False, steps that were added before recorded ones are executed, in old runs too.
    """
    description: str
    """The purpose of the pipeline, in one line."""


class PipelineDeclaration:
    """`hf.pipeline` registers a pipeline: `hf.pipeline("shop.signup.v1", create_account, send_welcome)`.

    A step is a plain function, sync or async, or one that `@hf.step` gave options. A function whose first parameter is
    `ctx` is workflow code: it may sleep, wait and call children.
    """

    def __init__(self, add: Callable[[Definition], None]) -> None:
        self._add = add

    # The result is that of the last step, awaited if it is async: two overloads for each kind of first step.
    @overload
    def __call__(self, type: str, /, **options: Unpack[PipelineOptions]) -> Pipeline[..., Any]: ...
    @overload
    def __call__(
        self, type: str, only: Callable[Concatenate[C, P], Any], /, **options: Unpack[PipelineOptions]
    ) -> Pipeline[P, Any]: ...
    @overload
    def __call__(
        self, type: str, only: Callable[P, Any], /, **options: Unpack[PipelineOptions]
    ) -> Pipeline[P, Any]: ...
    @overload
    def __call__(
        self,
        type: str,
        first: Callable[Concatenate[C, P], Any],
        /,
        *steps: *tuple[*tuple[Callable[..., Any], ...], Callable[..., Coroutine[Any, Any, R]]],
        **options: Unpack[PipelineOptions],
    ) -> Pipeline[P, R]: ...
    @overload
    def __call__(
        self,
        type: str,
        first: Callable[P, Any],
        /,
        *steps: *tuple[*tuple[Callable[..., Any], ...], Callable[..., Coroutine[Any, Any, R]]],
        **options: Unpack[PipelineOptions],
    ) -> Pipeline[P, R]: ...
    @overload
    def __call__(
        self,
        type: str,
        first: Callable[Concatenate[C, P], Any],
        /,
        *steps: *tuple[*tuple[Callable[..., Any], ...], Callable[..., R]],
        **options: Unpack[PipelineOptions],
    ) -> Pipeline[P, R]: ...
    @overload
    def __call__(
        self,
        type: str,
        first: Callable[P, Any],
        /,
        *steps: *tuple[*tuple[Callable[..., Any], ...], Callable[..., R]],
        **options: Unpack[PipelineOptions],
    ) -> Pipeline[P, R]: ...
    def __call__(  # type: ignore[misc]  # mypy does not see that *Callable takes every tuple of callables
        self, type: str, /, *steps: Callable[..., Any], **options: Unpack[PipelineOptions]
    ) -> Any:
        """Register a pipeline with these functions as its steps. Without functions, add them with `@p.step`.

        `PipelineOptions` has the options. Type checkers know its parameters from the first step, and its result from
        the last of two or more steps.
        """
        made: Pipeline[..., Any] = Pipeline(type, *steps, **options)
        self._add(made)
        return made


def _no_steps() -> None:
    """Stand in for the first step until it is declared."""
