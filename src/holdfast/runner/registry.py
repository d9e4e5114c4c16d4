"""The registry: workflows, tasks and schedules by name.

A `Holdfast` object contains one. A larger application declares more of them in its modules and includes them. Nothing
here is global, so nothing depends on the order of imports.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from holdfast.core.errors import InvalidRequest, UnknownWorkflow, nearest
from holdfast.core.model import Schedule
from holdfast.core.retry import TASK_RETRY, ErrorKinds, Retry
from holdfast.core.rules import CRASH_LIMIT
from holdfast.core.schedules import ScheduleOptions, checked_schedule
from holdfast.runner.context import Context
from holdfast.runner.definition import AsyncTask, Definition, Step, SyncWorkflow, Task, Workflow
from holdfast.runner.operation import DEFAULT_STEP_OPTIONS, StepOptions, step_options
from holdfast.runner.pipeline import PipelineDeclaration
from holdfast.runner.step_info import TaskContext
from holdfast.runner.sync_context import SyncContext
from holdfast.runner.violation import SLIPS

D = TypeVar("D")


P = ParamSpec("P")
R = TypeVar("R")

Add = Callable[[Definition], None]
"""Adds a definition to a registry."""


class WorkflowDecorator:
    """`@hf.workflow` registers a function, whose first parameter is the context, as a workflow.

    An `async def` function gets a `Context`, a `def` function a `SyncContext`.
    """

    def __init__(
        self,
        add: Add,
        type: str | None = None,
        *,
        crash_limit: int = CRASH_LIMIT,
        strict: bool = True,
        block_on: ErrorKinds = SLIPS,
    ) -> None:
        self._add = add
        self._type = type
        self._crash_limit = crash_limit
        self._is_strict = strict
        self._block_on = block_on

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> SyncWorkflow[P, R]: ...
    @overload
    def __call__(
        self,
        type: str | None = None,
        /,
        *,
        crash_limit: int = CRASH_LIMIT,
        strict: bool = True,
        block_on: ErrorKinds = SLIPS,
    ) -> WorkflowDecorator: ...
    def __call__(
        self,
        function: Any = None,
        /,
        *,
        crash_limit: int = CRASH_LIMIT,
        strict: bool = True,
        block_on: ErrorKinds = SLIPS,
    ) -> Any:
        """Register a function under its own name, or under the name `type`.

        - `crash_limit`: the number of worker crashes, without progress in between, that block a run
        - `strict`: True blocks a run whose code does not ask for the next recorded result. With False, new steps that
          the code inserts before recorded ones are executed, in old runs too.
        - `block_on`: the errors of its code that are most likely mistakes: they block a run, and undo nothing, until
          better code is deployed. Default: `NameError`, `ImportError`, `AttributeError`, `TypeError`, and the
          `InvalidRequest` of a wrong call of the context. With `()`, these errors fail the run like any other.
        """
        if not callable(function):
            return WorkflowDecorator(self._add, function, crash_limit=crash_limit, strict=strict, block_on=block_on)
        kind: Any = Workflow if inspect.iscoroutinefunction(function) else SyncWorkflow
        name = self._type or _name_of(function)
        made: Definition = kind(
            name, function, crash_limit=self._crash_limit, strict=self._is_strict, block_on=self._block_on
        )
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

        - `retry`: the retry policy after an error. Default: 3 attempts, 1 and then 4 minutes apart.
        - `timeout`: seconds or a timedelta that one attempt may take
        - `retry_timeout`: True to try again after an attempt that took too long
        - `crash_limit`: the number of worker crashes in a row that block a run
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

        - `retry`: the retry policy after an error. Default: `Retry()`, which is 4 attempts.
        - `timeout`: seconds or a timedelta that one attempt may take
        - `retry_timeout`: True to try again after an attempt that took too long
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


class Registry:
    """A collection of workflows, tasks, steps and schedules for a module, which an application adds with `hf.include`.

    Its decorators are those of `Holdfast`. Nothing depends on the order of imports.
    """

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}
        self._schedules: dict[str, Schedule] = {}
        self._included: list[Registry] = []

    @property
    def workflow(self) -> WorkflowDecorator:
        """Register a workflow: `@registry.workflow`, or with options `@registry.workflow("shop.checkout.v1")`."""
        return WorkflowDecorator(self._add)

    @property
    def task(self) -> TaskDecorator:
        """Register a task: `@registry.task`, or with options `@registry.task("mail.send.v1", timeout=30)`."""
        return TaskDecorator(self._add)

    @property
    def pipeline(self) -> PipelineDeclaration:
        """Register a pipeline: `registry.pipeline("shop.signup.v1", create_account, send_welcome)`."""
        return PipelineDeclaration(self._add)

    @property
    def step(self) -> StepDecorator:
        """Make a function a step: `@registry.step`, or with options `@registry.step(timeout=30)`."""
        return StepDecorator()

    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[D], D]:
        """Start runs over time: put `@registry.schedule("0 3 * * *")` above `@registry.workflow` or `@registry.task`.

        It fires at the times of the `cron` expression, or every `every` seconds (`ScheduleOptions`). `args` are the
        arguments of the function. `name` is the name of the schedule, by default the type. A worker puts the schedule
        into the store when it starts.
        """

        def declare(definition: D) -> D:
            known_as = getattr(definition, "type", "") if name is None else name
            schedule = checked_schedule(known_as, definition, args, cron, options, is_declared=True)
            self._check_free([schedule])
            self._schedules[schedule.name] = schedule
            return definition

        return declare

    def include(self, registry: Registry) -> None:
        """Add the workflows, tasks and schedules of another registry, and those it gets later."""
        if not isinstance(registry, Registry):
            raise InvalidRequest(
                f"include({registry!r:.80}): expected a Registry; declare shared workflows on a Registry of their own "
                "and include it in each Holdfast"
            )
        for type in registry.types():
            if self.get(type) is not None:
                raise InvalidRequest(f"type {type!r} is already registered here; a type has one definition")
        self._check_free(registry.schedules())
        self._included.append(registry)

    def get(self, type: str) -> Definition | None:
        """Return the definition of a type, or None if it is not registered here."""
        found = self._definitions.get(type)
        if found is None:
            for registry in self._included:
                if (found := registry.get(type)) is not None:
                    break
        return found

    def definition(self, workflow: object) -> Definition:
        """Return the definition of a type or of a decorated function. Raises `UnknownWorkflow` if there is none."""
        if isinstance(workflow, Definition):
            return workflow
        found = self.get(workflow) if isinstance(workflow, str) else None
        if found is None:
            known = sorted(self.types())
            near = nearest(workflow, known) if isinstance(workflow, str) else None
            meant = f"; did you mean {near!r}?" if near else ""
            raise UnknownWorkflow(
                f"{workflow!r} is not a registered workflow or task{meant} "
                f"(known here: {', '.join(known[:10]) or 'none'}); decorate the function "
                "with @hf.workflow or @hf.task, or include the registry that has it"
            )
        return found

    def count(self) -> int:
        """Return the number of workflows and tasks. It only grows."""
        return len(self._definitions) + sum(registry.count() for registry in self._included)

    def types(self) -> Iterator[str]:
        """Yield the names of all workflows and tasks."""
        yield from self._definitions
        for registry in self._included:
            yield from registry.types()

    def schedules(self) -> Iterator[Schedule]:
        """Yield all declared schedules."""
        yield from self._schedules.values()
        for registry in self._included:
            yield from registry.schedules()

    def _add(self, definition: Definition) -> None:
        if self.get(definition.type) is not None:
            raise InvalidRequest(f"type {definition.type!r} is already registered; a type has one definition")
        self._definitions[definition.type] = definition

    def _check_free(self, schedules: Iterator[Schedule] | list[Schedule]) -> None:
        taken = {schedule.name for schedule in self.schedules()}
        for schedule in schedules:
            if schedule.name in taken:
                raise InvalidRequest(f"schedule {schedule.name!r} already exists; give one of the two another name=…")
