"""Workflows: registered functions whose first parameter is a context, `async def` or plain `def`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from holdfast.core.errors import InvalidRequest
from holdfast.core.startable import Call
from holdfast.runner.context import Context
from holdfast.runner.context_parameter import check_context
from holdfast.runner.definition import Definition
from holdfast.runner.sync_context import SyncContext

P = ParamSpec("P")
R = TypeVar("R")


class Workflow(Definition, Generic[P, R]):
    """A registered `async def` workflow. Calling it calls the plain function, as in a unit test."""

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

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Bind arguments, by position or by name: `hf.start(checkout.bind(order="A-1"))`."""
        return self.bound(args, kwargs)

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
