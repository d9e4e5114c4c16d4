"""Definitions: registered functions with the codecs of their payload and result. Workflows, tasks, and steps."""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable, Container, Coroutine, Mapping
from functools import partial, update_wrapper
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from msgspec.structs import replace

from holdfast.core.checkpoint import Block, Finish
from holdfast.core.clock import Micros
from holdfast.core.codec import Codec, name_of
from holdfast.core.errors import ErrorRecord, HoldfastError, InvalidRequest, StepFailed
from holdfast.core.intent import Call, Signature, check_type, hints_of, is_count, result_codec
from holdfast.core.limits import first_line
from holdfast.core.location import check_name
from holdfast.core.model import Entry
from holdfast.core.retry import ErrorKinds, checked_kinds
from holdfast.core.rules import CRASH_LIMIT
from holdfast.core.states import RunState
from holdfast.runner import divergence
from holdfast.runner.code_requests import CodeRequests
from holdfast.runner.context import Context, requests_of
from holdfast.runner.divergence import Requested
from holdfast.runner.loop import current_run_loop
from holdfast.runner.looping import loop_codecs
from holdfast.runner.operation import StepCall, StepOptions, TaskCall, check_arguments, with_keywords
from holdfast.runner.step_info import TaskContext, takes_context
from holdfast.runner.sync_context import SyncContext
from holdfast.runner.violation import SLIPS

P = ParamSpec("P")
R = TypeVar("R")


class Definition:
    """A registered function with everything that a worker needs to execute its runs."""

    is_strict = True
    """True if the code must ask for all recorded entries, in recorded order, before it executes anything new."""
    block_on = SLIPS
    """Errors of its code that block a run instead of failing it."""

    def __init__(self, type: str, function: Callable[..., Any], *, skip: int, crash_limit: int = CRASH_LIMIT) -> None:
        self.type = check_type(type)
        """The name under which it is registered."""
        self.function = function
        """The plain function."""
        self.skip = skip
        self.signature = Signature(function, skip=skip)
        """The parameters and the result of a run."""
        if not is_count(crash_limit):
            raise InvalidRequest(f"crash_limit={crash_limit!r}: expected a whole number of at least 1")
        self.crash_limit: int = crash_limit
        self.surviving_lines: set[str] = set()
        """Lines of its code that swallow every attempt to close it and that a worker has reported already."""

        self._codecs: dict[object, Codec[Any]] = {}
        self._loop_codecs: dict[object, tuple[Codec[Any], Codec[Any]]] = {}

    @property
    def plan(self) -> tuple[str, ...]:
        """The names of the steps in order, if they are known before a run. Only a pipeline has them."""
        return ()

    @property
    def result(self) -> Codec[Any]:
        return self.signature.result

    @property
    def description(self) -> str:
        """The first line of the function's docstring."""
        return first_line(inspect.getdoc(self.function))

    def codec_of(self, function: Callable[..., Any]) -> Codec[Any]:
        """Return the codec for the result of a step's function. It is cached by code, not by function object."""
        plain = function
        while isinstance(plain, partial):
            plain = plain.func
        # A callable object is cached by its class: it may have no hash, and code may create a new one for each call.
        origin = getattr(plain, "__code__", plain if isinstance(plain, type) else type(plain))
        key = (origin, str(getattr(plain, "__annotations__", {}).get("return")))
        if key not in self._codecs:
            self._codecs[key] = result_codec(function)
        return self._codecs[key]

    def loop_codecs(self, body: Callable[..., Any]) -> tuple[Codec[Any], Codec[Any]]:
        """Return the codecs for the state and the value of a loop. They are cached per body."""
        plain = body
        # Use the user's own function: a blocking body is wrapped, and all wrappers share one code object.
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
        """The error that a run has before its turn begins, if it is not one that blocked the run."""
        return None

    def finish(self, root: asyncio.Task[Any], now: Micros) -> Finish | Block:
        """Return the end of a run whose code has returned or raised. A result that cannot be stored is a failure."""
        error = error_of(root)
        if error is None:
            what = f"result of workflow {self.type!r}"
            try:
                return Finish(state=RunState.SUCCEEDED, result=self.signature.result.store(root.result(), what)[0])
            except HoldfastError as refused:
                error = refused
        failed = error if isinstance(error, StepFailed) else error.__cause__
        if self.is_task and isinstance(failed, StepFailed):
            # A task is one step, so the error of the step is the error of the task.
            return Finish(state=RunState.FAILED, error=replace(failed.record, locations=(failed.location,)))
        return Finish(state=RunState.FAILED, error=ErrorRecord.of(error))

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a run. Raises `InvalidRequest` if the payload does not fit the function."""
        args, kwargs = self.signature.decode(payload, f"payload of {self.type!r}")
        coroutine: Coroutine[Any, Any, Any] = self.function(context, *args, **kwargs)
        return coroutine

    def hints(self, recorded: Entry | None, requested: Requested | None, known: Container[str]) -> tuple[str, ...]:
        """Return lines that let runs with `recorded` and without `requested` continue with changed code."""
        return divergence.hints(recorded, requested, known)

    def deliver(self, operation: Coroutine[Any, Any, Any]) -> Any:
        """Return the value that a call of a decorated step has in this code: an awaitable."""
        return operation

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[Any]:
        """Return a call of the function with these arguments. Refuses arguments that do not fit its signature."""
        self.signature.check(args, kwargs)
        return Call(self, args, kwargs)


def error_of(root: asyncio.Task[Any]) -> BaseException | None:
    """Return the error that a workflow raised. None if it returned."""
    if root.cancelled():
        return asyncio.CancelledError("the workflow cancelled itself")
    return root.exception()


class Workflow(Definition, Generic[P, R]):
    """A registered `async def` workflow. Calling it calls the plain function, as in a unit test."""

    def __init__(
        self,
        type: str,
        function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]],
        *,
        crash_limit: int,
        strict: bool = True,
        block_on: ErrorKinds = SLIPS,
    ) -> None:
        check_context(type, function, is_async=True)
        super().__init__(type, function, skip=1, crash_limit=crash_limit)
        self.is_strict = strict
        self.block_on = checked_kinds("block_on=…", block_on)
        update_wrapper(self, function)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Bind arguments, by position or by name: `hf.start(checkout.bind(order="A-1"))`."""
        return self.bound(args, kwargs)

    def __call__(self, ctx: Context, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(ctx, *args, **kwargs)
        return coroutine

    def __repr__(self) -> str:
        return f"<workflow {self.type}>"


class SyncWorkflow(Definition, Generic[P, R]):
    """A registered `def` workflow. Calling it calls the plain function, as in a unit test."""

    def __init__(
        self,
        type: str,
        function: Callable[Concatenate[SyncContext, P], R],
        *,
        crash_limit: int,
        strict: bool = True,
        block_on: ErrorKinds = SLIPS,
    ) -> None:
        _check_blocking(type, function)
        check_context(type, function, is_async=False)
        super().__init__(type, function, skip=1, crash_limit=crash_limit)
        self.is_strict = strict
        self.block_on = checked_kinds("block_on=…", block_on)
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

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Bind arguments, by position or by name: `hf.start(checkout.bind(order="A-1"))`."""
        return self.bound(args, kwargs)

    def __call__(self, ctx: SyncContext, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(ctx, *args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<workflow {self.type}>"


def _check_blocking(type: str, function: Callable[..., Any]) -> None:
    """Refuse a function whose call returns a coroutine or a generator, although it looks like a plain function."""
    if inspect.isclass(function) or not callable(function):
        raise InvalidRequest(f"workflow {type!r}: expected an `async def` or `def` function, got {function!r}")
    inner = inspect.unwrap(function)
    for each in (inner, getattr(inner, "__call__", None)):  # noqa: B004 - an object's own, to look into
        if inspect.iscoroutinefunction(each):
            raise InvalidRequest(
                f"workflow {type!r}: {function!r} is not an `async def` function, but wraps one; "
                "decorate the inner function, or make the wrapper `async def` too"
            )
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise InvalidRequest(f"workflow {type!r}: {function!r} is a generator; a workflow must return, not yield")


class Task(Definition, Generic[P, R]):
    """A registered task that is a `def` function. Calling it calls the plain function, as in a unit test.

    If the function takes a `ctx`, calling it passes one that does nothing.
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
        requests = requests_of(context)
        return requests.perform(self.call(payload, requests.run.options.max_attempts))

    def call(self, payload: str, max_attempts: int | None) -> StepCall:
        """Return the one step of the task. Raises `InvalidRequest` if the payload does not fit the function.

        `max_attempts` replaces the number of attempts in the options of the task, if the run has that option.
        """
        args, kwargs = self.signature.decode(payload, f"payload of {self.type!r}")
        function = with_keywords(self.function, kwargs) if kwargs else self.function
        options = self.options
        if max_attempts is not None:
            options = replace(options, retry=replace(options.retry, max_attempts=max_attempts))
        return self._call(self.type, function, args, self.signature.result, options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Bind arguments, by position or by name: `hf.start(resize.bind(image="cat.png"))`."""
        return self.bound(args, kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        context = (TaskContext("", 1, self.type, 1),) if self.skip else ()
        result: R = self.function(*context, *args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<task {self.type}>"


class AsyncTask(Task[P, R]):
    """A registered task that is an `async def` function. Calling it returns a coroutine."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        return super().__call__(*args, **kwargs)  # type: ignore[return-value]  # it is the coroutine of the result


class Step(Generic[P, R]):
    """A function that is a step: durable when workflow code calls it, and a plain function everywhere else.

    `ctx.step` accepts it too, with another name or other options.
    """

    def __init__(self, name: str, function: Callable[P, Any], options: StepOptions) -> None:
        self.name = check_name(name, "step name")
        """The name of the step in the history."""
        self.function = function
        """The plain function."""
        self.options = options
        self.codec: Codec[Any] = result_codec(function)
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        loop = current_run_loop()
        if loop is None:
            result: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
            return result
        requests = CodeRequests.on(loop)
        asked = requests.step(self.name, self.function, args, self.codec, self.options, kwargs=kwargs)
        # In a `def` workflow this is the value itself. Type checkers cannot know that; see `blocking` below.
        delivered: Coroutine[Any, Any, R] = requests.definition.deliver(asked)
        return delivered

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Bind arguments, by position or by name, for `ctx.step`."""
        check_arguments(self.function, self.name, args, kwargs)
        return Call(self, args, kwargs)

    @property
    def blocking(self) -> Callable[P, R]:
        """The step, typed for `def` workflows, where a call returns the value instead of an awaitable.

        It is the same object; only type checkers see a difference.
        """
        return cast("Callable[P, R]", self)

    def __repr__(self) -> str:
        return f"<step {self.name}>"


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
