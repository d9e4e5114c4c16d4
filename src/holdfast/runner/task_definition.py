"""Tasks: registered plain functions, `def` or `async def`. Each run of a task is one durable step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from msgspec.structs import replace

from holdfast.core.startable import Call
from holdfast.runner.arguments import with_keywords
from holdfast.runner.context import Context, requests_of
from holdfast.runner.definition import Definition
from holdfast.runner.operation import StepCall, StepOptions, TaskCall
from holdfast.runner.task_context import TaskContext, takes_context

P = ParamSpec("P")
R = TypeVar("R")


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
