"""Pipelines: workflows that are an ordered list of named steps, which is known before they run."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Coroutine, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from holdfast.core.errors import InvalidRequest
from holdfast.core.model import Entry
from holdfast.core.rules import CRASH_LIMIT
from holdfast.core.signature import Signature
from holdfast.core.startable import Call
from holdfast.core.types import first_line
from holdfast.runner.code_requests import CodeRequests
from holdfast.runner.context import Context, StepKeywords, requests_of
from holdfast.runner.definition import Definition
from holdfast.runner.divergence import Requested
from holdfast.runner.pipeline_order import check_follows
from holdfast.runner.pipeline_step import PipelineStep, pipeline_step
from holdfast.runner.sync_context import SyncContext

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
        self._complete()
        return self._signature

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
