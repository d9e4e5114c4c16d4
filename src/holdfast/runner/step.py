"""Steps: functions that are durable when workflow code calls them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast

from holdfast.core.codec import Codec
from holdfast.core.location import check_name
from holdfast.core.signature import result_codec
from holdfast.core.startable import Call
from holdfast.runner.arguments import check_arguments, with_keywords
from holdfast.runner.code_requests import CodeRequests
from holdfast.runner.loop import current_run_loop
from holdfast.runner.operation import StepOptions

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A function that is a step: durable when workflow code calls it, and a plain function everywhere else.

    `ctx.step` takes it, too, under another name or with other options.
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
        function = with_keywords(self.function, kwargs) if kwargs else self.function
        asked = requests.step(self.name, function, args, self.codec, self.options)
        # In a `def` workflow the value itself, which no type checker could tell from here; see `blocking`.
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
