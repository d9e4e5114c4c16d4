"""The registry: which workflows, tasks and steps there are, under which names.

An application has one inside its `Holdfast` object; a larger one declares more of them in its modules and
includes them. Nothing here is global, so nothing depends on the order of imports.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from holdfast.core.checkpoint import Block, Finish
from holdfast.core.clock import Micros
from holdfast.core.codec import Codec
from holdfast.core.errors import ErrorRecord, InvalidRequest, UnknownWorkflow
from holdfast.core.intent import check_type, is_count
from holdfast.core.location import check_name
from holdfast.core.retry import TASK_RETRY, Retry
from holdfast.core.rules import CRASH_LIMIT
from holdfast.core.signature import Signature, result_codec
from holdfast.core.types import first_line
from holdfast.runner.context import Context
from holdfast.runner.context_parameter import check_context
from holdfast.runner.declared_schedules import DeclaredSchedules
from holdfast.runner.loop import current_run_loop
from holdfast.runner.looping import loop_codecs
from holdfast.runner.operation import DEFAULT_STEP_OPTIONS, StepCall, StepOptions, TaskCall, step_options
from holdfast.runner.outcome import finish_of
from holdfast.runner.sync_context import SyncContext
from holdfast.runner.task_context import TaskContext, takes_context

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D", bound="Definition")


class Definition:
    """What a worker needs to run a type: its function, and how payload and result are read and written."""

    is_strict = True
    """Whether its code has to ask for what is recorded in the recorded order, before it executes anything new."""

    def __init__(self, type: str, function: Callable[..., Any], *, skip: int, crash_limit: int = CRASH_LIMIT) -> None:
        self.type = check_type(type)
        self.function = function
        self.skip = skip
        self.signature = Signature(function, skip=skip)
        if not is_count(crash_limit):
            raise InvalidRequest(f"crash_limit={crash_limit!r}: it is a whole number of at least 1")
        self.crash_limit = crash_limit
        self.surviving_lines: set[str] = set()
        """Where its code swallows every attempt to close it, as far as a worker has reported it."""

        self._codecs: dict[object, Codec[Any]] = {}
        self._loop_codecs: dict[object, tuple[Codec[Any], Codec[Any]]] = {}

    @property
    def result(self) -> Codec[Any]:
        return self.signature.result

    @property
    def description(self) -> str:
        """What its docstring says in its first line."""
        return first_line(inspect.getdoc(self.function))

    def codec_of(self, function: Callable[..., Any]) -> Codec[Any]:
        """The codec of what a step's function returns; built once, also for a function that is made anew each time."""
        plain = function
        while isinstance(plain, partial):
            plain = plain.func
        # An object that is called is known by its class: it may have no hash, and there may be a new one each time.
        origin = getattr(plain, "__code__", plain if isinstance(plain, type) else type(plain))
        key = (origin, str(getattr(plain, "__annotations__", {}).get("return")))
        if key not in self._codecs:
            self._codecs[key] = result_codec(function)
        return self._codecs[key]

    def loop_codecs(self, body: Callable[..., Any]) -> tuple[Codec[Any], Codec[Any]]:
        """The codecs of the state and the value of a loop; built once for each body."""
        plain = body
        # The user's own: one that blocks is wrapped, and all wrappers are of one make.
        while isinstance(plain := inspect.unwrap(plain), partial):
            plain = plain.func
        key = (getattr(plain, "__code__", type(plain)), str(getattr(plain, "__annotations__", {})))
        if key not in self._loop_codecs:
            self._loop_codecs[key] = loop_codecs(body)
        return self._loop_codecs[key]

    @property
    def is_task(self) -> bool:
        return False

    @property
    def reason(self) -> ErrorRecord | None:
        """The error a run has when it begins, if it is not one that blocked it."""
        return None

    def finish(self, root: asyncio.Task[Any], now: Micros) -> Finish | Block:
        """What the end of a run's coroutine means for the run."""
        return finish_of(self, root)

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        """The coroutine of a run. Raises `InvalidRequest` if the payload does not fit the function."""
        args, kwargs = self.signature.decode(payload, f"payload of {self.type!r}")
        coroutine: Coroutine[Any, Any, Any] = self.function(context, *args, **kwargs)
        return coroutine

    def deliver(self, operation: Coroutine[Any, Any, Any]) -> Any:
        """What code of this definition gets when it calls a decorated step: something to await."""
        return operation


class Workflow(Definition, Generic[P, R]):
    """A registered workflow function. Calling it calls the function, as in a unit test."""

    def __init__(
        self,
        type: str,
        function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]],
        *,
        crash_limit: int,
        strict: bool = True,
    ) -> None:
        check_context(type, function, is_async=True)
        super().__init__(type, function, skip=1, crash_limit=crash_limit)
        self.is_strict = strict
        update_wrapper(self, function)

    def __call__(self, ctx: Context, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(ctx, *args, **kwargs)
        return coroutine

    def __repr__(self) -> str:
        return f"<workflow {self.type}>"


class SyncWorkflow(Definition, Generic[P, R]):
    """A registered workflow that is a plain `def` function. Calling it calls the function, as in a unit test."""

    def __init__(
        self,
        type: str,
        function: Callable[Concatenate[SyncContext, P], R],
        *,
        crash_limit: int,
        strict: bool = True,
    ) -> None:
        _check_blocking(type, function)
        check_context(type, function, is_async=False)
        super().__init__(type, function, skip=1, crash_limit=crash_limit)
        self.is_strict = strict
        try:
            from holdfast.runner.blocking import run_blocking, wait
        except ImportError as error:
            raise InvalidRequest(
                f"workflow {type!r} is a plain `def` function, which needs greenlet ({error}): "
                "pip install holdfast[sync], or make it an `async def` function"
            ) from error
        self._run = run_blocking
        self._wait = wait
        update_wrapper(self, function)

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        args, kwargs = self.signature.decode(payload, f"payload of {self.type!r}")
        return self._run(self.function, SyncContext(context), *args, **kwargs)

    def deliver(self, operation: Coroutine[Any, Any, Any]) -> Any:
        return self._wait(operation)

    def __call__(self, ctx: SyncContext, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(ctx, *args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<workflow {self.type}>"


def _check_blocking(type: str, function: Callable[..., Any]) -> None:
    """Refuse what looks like a plain function and is not one: calling it would only make a coroutine or generator."""
    if inspect.isclass(function) or not callable(function):
        raise InvalidRequest(f"workflow {type!r} must be a function, `async def` or `def`, which {function!r} is not")
    inner = inspect.unwrap(function)
    for each in (inner, getattr(inner, "__call__", None)):  # noqa: B004 - an object's own, to look into
        if inspect.iscoroutinefunction(each):
            raise InvalidRequest(
                f"workflow {type!r}: {function!r} is no `async def` function itself, but one is inside; "
                "decorate that one, or make what is around it `async def` too"
            )
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise InvalidRequest(
                f"workflow {type!r}: {function!r} is a generator; a workflow returns, it does not yield"
            )


class Task(Definition, Generic[P, R]):
    """A registered plain function, sync or async, that is run durably as one step.

    Calling it calls the function; one that takes a context gets one that nobody listens to.
    """

    def __init__(self, type: str, function: Callable[..., R], *, options: StepOptions, crash_limit: int) -> None:
        has_context = takes_context(type, function)
        super().__init__(type, function, skip=int(has_context), crash_limit=crash_limit)
        self.options = options
        self._call = TaskCall if has_context else StepCall
        update_wrapper(self, function)

    @property
    def is_task(self) -> bool:
        return True

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        return context.requests.perform(self.call(payload))

    def call(self, payload: str) -> StepCall:
        """The one step that the task is. Raises `InvalidRequest` if the payload does not fit the function."""
        args, kwargs = self.signature.decode(payload, f"payload of {self.type!r}")
        function = _with_keywords(self.function, kwargs) if kwargs else self.function
        return self._call(self.type, function, args, self.signature.result, self.options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        context = (TaskContext("", 1, self.type, 1),) if self.skip else ()
        result: R = self.function(*context, *args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<task {self.type}>"


class Step(Generic[P, R]):
    """A function that is durable when workflow code calls it, and a plain function everywhere else.

    `function` is the plain one, for a type checker that should see it as such.
    """

    def __init__(self, name: str, function: Callable[P, Any], options: StepOptions) -> None:
        self.name = check_name(name, "step name")
        self.function = function
        self.options = options
        self.codec: Codec[Any] = result_codec(function)
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        loop = current_run_loop()
        if loop is None:
            result: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
            return result
        context = Context.of(loop)
        function = _with_keywords(self.function, kwargs) if kwargs else self.function
        asked = context.run_step(self.name, function, args, self.codec, self.options)
        # In a `def` workflow the value itself, which no type checker could tell from here; see `blocking`.
        delivered: Coroutine[Any, Any, R] = context.requests.definition.deliver(asked)
        return delivered

    @property
    def blocking(self) -> Callable[P, R]:
        """The step itself, as a `def` workflow sees it: a call gives the value.

        For type checkers, which cannot know who calls; at run time it makes no difference.
        """
        return cast("Callable[P, R]", self)

    def __repr__(self) -> str:
        return f"<step {self.name}>"


def _with_keywords(function: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        async def called(*args: Any) -> Any:
            return await function(*args, **kwargs)

        return called
    return lambda *args: function(*args, **kwargs)


class Registry(DeclaredSchedules):
    """Workflows, tasks and steps by name, and schedules of them."""

    def __init__(self) -> None:
        super().__init__()
        self._definitions: dict[str, Definition] = {}
        self._included: list[Registry] = []

    @overload
    def workflow(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(self, function: Callable[Concatenate[SyncContext, P], R], /) -> SyncWorkflow[P, R]: ...
    @overload
    def workflow(
        self, type: str | None = None, /, *, crash_limit: int = CRASH_LIMIT, strict: bool = True
    ) -> WorkflowDecorator: ...
    def workflow(self, type: Any = None, /, *, crash_limit: int = CRASH_LIMIT, strict: bool = True) -> Any:
        """Register a function, whose first parameter is the context, as a workflow.

        An `async def` function gets a `Context`, a plain `def` one a `SyncContext`, whose operations block.
        `crash_limit`: so many workers may die with a run, without any progress in between, before it is blocked.
        `strict`: code that does not ask for the next recorded result of a run blocks the run, before it executes
        anything new. With `strict=False`, steps that new code inserts are executed where they stand, also in old runs.
        """
        decorator = WorkflowDecorator(
            self._add, None if callable(type) else type, crash_limit=crash_limit, strict=strict
        )
        return decorator(type) if callable(type) else decorator

    @overload
    def task(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        type: str | None = None,
        /,
        *,
        retry: Retry = TASK_RETRY,
        timeout: float | timedelta | None = None,
        retry_timeout: bool = False,
        crash_limit: int = CRASH_LIMIT,
    ) -> TaskDecorator: ...
    def task(
        self,
        type: Any = None,
        /,
        *,
        retry: Retry = TASK_RETRY,
        timeout: float | timedelta | None = None,
        retry_timeout: bool = False,
        crash_limit: int = CRASH_LIMIT,
    ) -> Any:
        """Register a plain function, sync or async, as a task: a run with one implicit step.

        A first parameter called `ctx` gets a `TaskContext`, and is no part of the payload.
        """
        options = step_options(DEFAULT_STEP_OPTIONS, retry=retry, timeout=timeout, retry_timeout=retry_timeout)
        decorator = TaskDecorator(self._add, None if callable(type) else type, options, crash_limit)
        return decorator(type) if callable(type) else decorator

    @overload
    def step(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def step(self, function: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
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
    def step(
        self,
        name: Any = None,
        /,
        *,
        retry: Retry = Retry(),  # noqa: B008 - frozen
        timeout: float | timedelta | None = None,
        retry_timeout: bool = False,
        ephemeral: bool = False,
        undo: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Make a function a step: called by workflow code it is durable, elsewhere it is itself.

        `undo` is called with the step's result if the run rolls back.
        """
        options = step_options(
            DEFAULT_STEP_OPTIONS,
            retry=retry,
            timeout=timeout,
            retry_timeout=retry_timeout,
            ephemeral=ephemeral,
            undo=undo,
        )
        decorator = StepDecorator(None if callable(name) else name, options)
        return decorator(name) if callable(name) else decorator

    def include(self, registry: Registry) -> None:
        """Take in what another registry has, and what it will have."""
        for type in registry.types():
            if self.get(type) is not None:
                raise InvalidRequest(f"type {type!r} is already registered here; a type has one definition")
        self.take_in(registry)
        self._included.append(registry)

    def get(self, type: str) -> Definition | None:
        """The definition of a type, if it is registered here."""
        found = self._definitions.get(type)
        if found is None:
            for registry in self._included:
                if (found := registry.get(type)) is not None:
                    break
        return found

    def definition(self, workflow: object) -> Definition:
        """The definition of a type, or of a decorated function; `UnknownWorkflow` if there is none."""
        if isinstance(workflow, Definition):
            return workflow
        found = self.get(workflow) if isinstance(workflow, str) else None
        if found is None:
            known = ", ".join(sorted(self.types())[:10]) or "none"
            raise UnknownWorkflow(
                f"{workflow!r} is not a registered workflow or task (known here: {known}); decorate the function "
                "with @hf.workflow or @hf.task, or include the registry that has it"
            )
        return found

    def count(self) -> int:
        """How many workflows and tasks there are; it only grows."""
        return len(self._definitions) + sum(registry.count() for registry in self._included)

    def types(self) -> Iterator[str]:
        """The names of all workflows and tasks."""
        yield from self._definitions
        for registry in self._included:
            yield from registry.types()

    def _add(self, definition: D) -> D:
        if self.get(definition.type) is not None:
            raise InvalidRequest(f"type {definition.type!r} is already registered; a type has one definition")
        self._definitions[definition.type] = definition
        return definition


class WorkflowDecorator:
    """What `@hf.workflow(…)` gives: it registers a function, `async def` or plain `def`."""

    def __init__(
        self, add: Callable[[Definition], Definition], type: str | None, *, crash_limit: int, strict: bool
    ) -> None:
        self._add = add
        self._type = type
        self._crash_limit = crash_limit
        self._is_strict = strict

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> SyncWorkflow[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Definition:
        kind: Any = Workflow if inspect.iscoroutinefunction(function) else SyncWorkflow
        name = self._type or _name_of(function)
        made: Definition = kind(name, function, crash_limit=self._crash_limit, strict=self._is_strict)
        return self._add(made)


class TaskDecorator:
    """What `@hf.task(…)` gives: it registers a function, sync or async, with a context or without."""

    def __init__(
        self, add: Callable[[Task[Any, Any]], Task[Any, Any]], type: str | None, options: StepOptions, crash_limit: int
    ) -> None:
        self._add = add
        self._type = type
        self._options = options
        self._crash_limit = crash_limit

    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[Any, Any]:
        name = self._type or _name_of(function)
        return self._add(Task(name, function, options=self._options, crash_limit=self._crash_limit))


class StepDecorator:
    """What `@hf.step(…)` gives: it makes a step of a function, sync or async."""

    def __init__(self, name: str | None, options: StepOptions) -> None:
        self._name = name
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Step[Any, Any]:
        return Step(self._name or _name_of(function), function, self._options)


def _name_of(function: Callable[..., Any]) -> str:
    name: str = getattr(function, "__name__", type(function).__name__)
    return name
