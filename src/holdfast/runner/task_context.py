"""The context of a task: what its function may know about its run, and tell of it while it works."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from holdfast.core.codec import encode_any, name_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.signature import hints_of
from holdfast.runner.step_info import StepInfo

PROGRESS = "progress"
"""The name of the value that a task publishes."""


class TaskContext(StepInfo):
    """The first argument of a task whose first parameter is named `ctx`. It is safe to use in threads."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The name under which the task is registered. Its one step has the same name."""
        return self.location

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records name the run."""
        about = {"run_id": self.run_id, "run_type": self.type, "location": self.location, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger("holdfast.task"), about)

    def progress(self, value: Any) -> None:
        """Publish the progress, a number or any JSON value, which others read with `run.value("progress")`.

        Call it as often as you like: a few values a second are written, and the last one. It is a heartbeat too: it
        raises `LeaseLost` when the attempt no longer counts.
        """
        self.news = encode_any(value, "progress")
        self.heartbeat()


def takes_context(type: str, function: Callable[..., Any]) -> bool:
    """Whether the first parameter of a task is its context: it is called `ctx`, or declared as one."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False  # what is wrong with it is said when its parameters are read
    hints = hints_of(function)
    for name in parameters[1:]:
        if hints.get(name) is TaskContext:
            raise InvalidRequest(f"task {type!r} takes its TaskContext as {name!r}; it must be the first parameter")
    if not parameters:
        return False
    hint = hints.get(parameters[0], TaskContext if parameters[0] == "ctx" else None)
    if parameters[0] == "ctx" and hint not in (TaskContext, Any):
        raise InvalidRequest(
            f"task {type!r} has a first parameter `ctx`, by which a task gets its TaskContext, but declares it as "
            f"{name_of(hint)}: declare it as TaskContext, or give what is part of the payload another name"
        )
    return hint is TaskContext or parameters[0] == "ctx"
