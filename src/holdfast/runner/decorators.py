"""The decorators `@hf.workflow`, `@hf.task` and `@hf.step`, bare or with options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from holdfast.core.retry import TASK_RETRY, Retry
from holdfast.core.rules import CRASH_LIMIT
from holdfast.runner.context import Context
from holdfast.runner.definition import Definition
from holdfast.runner.operation import DEFAULT_STEP_OPTIONS, StepOptions, step_options
from holdfast.runner.step import Step
from holdfast.runner.sync_context import SyncContext
from holdfast.runner.task_context import TaskContext
from holdfast.runner.task_definition import AsyncTask, Task
from holdfast.runner.workflow import SyncWorkflow, Workflow

P = ParamSpec("P")
R = TypeVar("R")

Add = Callable[[Definition], None]
"""Adds a definition to a registry."""


class WorkflowDecorator:
    """`@hf.workflow` registers a function, whose first parameter is the context, as a workflow.

    An `async def` function gets a `Context`, a `def` function a `SyncContext`.
    """

    def __init__(
        self, add: Add, type: str | None = None, *, crash_limit: int = CRASH_LIMIT, strict: bool = True
    ) -> None:
        self._add = add
        self._type = type
        self._crash_limit = crash_limit
        self._is_strict = strict

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> SyncWorkflow[P, R]: ...
    @overload
    def __call__(
        self, type: str | None = None, /, *, crash_limit: int = CRASH_LIMIT, strict: bool = True
    ) -> WorkflowDecorator: ...
    def __call__(self, function: Any = None, /, *, crash_limit: int = CRASH_LIMIT, strict: bool = True) -> Any:
        """Register a function under its own name, or under the name `type`.

        - `crash_limit`: how many workers may die with a run, without progress in between, before the run is blocked
        - `strict`: True blocks a run whose code does not ask for the next recorded result. With False, new steps that
          the code inserts before recorded ones are executed, in old runs too.
        """
        if not callable(function):
            return WorkflowDecorator(self._add, function, crash_limit=crash_limit, strict=strict)
        kind: Any = Workflow if inspect.iscoroutinefunction(function) else SyncWorkflow
        name = self._type or _name_of(function)
        made: Definition = kind(name, function, crash_limit=self._crash_limit, strict=self._is_strict)
        self._add(made)
        return made


class TaskDecorator:
    """`@hf.task` registers a plain function, sync or async, as a task: a run with one implicit step.

    A first parameter named `ctx` gets a `TaskContext`. It is not part of the payload.
    """

    def __init__(
        self,
        add: Add,
        type: str | None = None,
        options: StepOptions | None = None,
        *,
        crash_limit: int = CRASH_LIMIT,
    ) -> None:
        self._add = add
        self._type = type
        self._options = options or step_options(DEFAULT_STEP_OPTIONS, retry=TASK_RETRY)
        self._crash_limit = crash_limit

    @overload
    def __call__(
        self, function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        type: str | None = None,
        /,
        *,
        retry: Retry = TASK_RETRY,
        timeout: float | timedelta | None = None,
        retry_timeout: bool = False,
        crash_limit: int = CRASH_LIMIT,
    ) -> TaskDecorator: ...
    def __call__(
        self,
        function: Any = None,
        /,
        *,
        retry: Retry = TASK_RETRY,
        timeout: float | timedelta | None = None,
        retry_timeout: bool = False,
        crash_limit: int = CRASH_LIMIT,
    ) -> Any:
        """Register a function under its own name, or under the name `type`.

        - `retry`: when to try again after an error. Default: 3 attempts, 1 and then 4 minutes apart.
        - `timeout`: seconds or a timedelta that one attempt may take
        - `retry_timeout`: whether an attempt that took too long is tried again
        - `crash_limit`: how many workers may die with a run before the run is blocked
        """
        if not callable(function):
            options = step_options(DEFAULT_STEP_OPTIONS, retry=retry, timeout=timeout, retry_timeout=retry_timeout)
            return TaskDecorator(self._add, function, options, crash_limit=crash_limit)
        kind = AsyncTask if inspect.iscoroutinefunction(function) else Task
        name = self._type or _name_of(function)
        made: Task[Any, Any] = kind(name, function, options=self._options, crash_limit=self._crash_limit)
        self._add(made)
        return made


class StepDecorator:
    """`@hf.step` makes a function, sync or async, a step.

    A step is durable when workflow code calls it. Everywhere else it is a plain function.
    """

    def __init__(self, name: str | None = None, options: StepOptions = DEFAULT_STEP_OPTIONS) -> None:
        self._name = name
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def __call__(
        self,
        name: str | None = None,
        /,
        *,
        retry: Retry = ...,
        timeout: float | timedelta | None = None,
        retry_timeout: bool = False,
        ephemeral: bool = False,
        undo: Callable[[Any], Any] | None = None,
    ) -> StepDecorator: ...
    def __call__(
        self,
        function: Any = None,
        /,
        *,
        retry: Retry = Retry(),  # noqa: B008 - frozen
        timeout: float | timedelta | None = None,
        retry_timeout: bool = False,
        ephemeral: bool = False,
        undo: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Make a function a step with its own name, or with the name `name`.

        - `retry`: when to try again after an error. Default: `Retry()`, which is 4 attempts.
        - `timeout`: seconds or a timedelta that one attempt may take
        - `retry_timeout`: whether an attempt that took too long is tried again
        - `ephemeral`: record the result with the next checkpoint instead of at once. Faster, but the step may run again
          after a crash.
        - `undo`: a function that is called with the result of the step if the run rolls back
        """
        if not callable(function):
            options = step_options(
                DEFAULT_STEP_OPTIONS,
                retry=retry,
                timeout=timeout,
                retry_timeout=retry_timeout,
                ephemeral=ephemeral,
                undo=undo,
            )
            return StepDecorator(function, options)
        return Step(self._name or _name_of(function), function, self._options)


def _name_of(function: Callable[..., Any]) -> str:
    name: str = getattr(function, "__name__", type(function).__name__)
    return name
