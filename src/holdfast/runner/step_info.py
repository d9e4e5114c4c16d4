"""Step info: what the body of a step or task can read about its attempt, and how it reports progress.

A body runs in a thread or on the worker's loop, and may report thousands of times a second. So it only stores its
latest report and calls `notify` once. The worker reads the latest report when it has time.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from holdfast.core.codec import encode_any, name_of
from holdfast.core.errors import InvalidRequest, LeaseLost
from holdfast.core.intent import hints_of


class StepInfo:
    """One attempt at a step, as its body sees it."""

    __slots__ = (
        "_has_notified",
        "_notify",
        "attempt",
        "generation",
        "has_beaten",
        "is_cancelled",
        "location",
        "news",
        "recorded",
        "round",
        "run_id",
    )

    def __init__(
        self,
        run_id: str,
        generation: int,
        location: str,
        attempt: int,
        notify: Callable[[StepInfo], None] | None = None,
        *,
        round: int = 0,
    ) -> None:
        self.run_id = run_id
        """The id of the run."""
        self.generation = generation
        """The generation of the run."""
        self.location = location
        """The location of the step, such as `charge`."""
        self.attempt = attempt
        """The number of this attempt, beginning with 1."""
        self.round = round
        """The number of times that the step was undone before, in this generation."""
        self.is_cancelled = False
        """True if this attempt no longer counts: it timed out, or its run was cancelled or taken over."""
        self.has_beaten = False
        # The body writes only `news`, the listener only `recorded`, so nothing is lost between the two threads.
        self.news: str | None = None
        self.recorded: str | None = None
        self._notify = notify
        self._has_notified = False

    @property
    def idempotency_key(self) -> str:
        """A key to pass to the systems you call, so that a repeated attempt has no second effect.

        It is the same on every attempt. It changes only after the step was undone.
        """
        key = f"{self.run_id}:{self.generation}:{self.location}"
        # The effect of an earlier round is undone. A provider would answer its key with that old effect.
        return f"{key}:{self.round + 1}" if self.round else key

    def heartbeat(self) -> None:
        """Report that the body is alive. Raises `LeaseLost` if the attempt no longer counts, so that the body can stop.

        Call it now and then in a body that takes long. The audit of the run notes it about once a minute.
        """
        if self.is_cancelled:
            raise LeaseLost(
                f"attempt {self.attempt} at {self.location!r} of run {self.run_id} no longer counts: it timed out, "
                "or the run was cancelled or taken over; stop here"
            )
        self.has_beaten = True
        if not self._has_notified and self._notify is not None:
            self._has_notified = True
            self._notify(self)

    def rearm(self) -> bool:
        """Let the next report call `notify` again. The listener calls this.

        Returns True if there is a new report already, which will not call `notify`.
        """
        # Reset the flag before the check: a report in between calls `notify`, or is seen here, or both.
        self._has_notified = False
        self._has_notified = self.has_beaten or self.news is not self.recorded
        return self._has_notified

    def __repr__(self) -> str:
        return f"<attempt {self.attempt} at {self.location} of run {self.run_id}>"


current_step: ContextVar[StepInfo] = ContextVar("holdfast_step")


def step_info() -> StepInfo:
    """Return the attempt that executes this code. Raises `InvalidRequest` outside of the body of a step or task."""
    try:
        return current_step.get()
    except LookupError:
        raise InvalidRequest("step_info() works only inside the body of a step or task") from None


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

        Call it as often as you like: the store gets a few values a second, and the last one. It is also a heartbeat: it
        raises `LeaseLost` if the attempt no longer counts.
        """
        self.news = encode_any(value, "progress")
        self.heartbeat()


def takes_context(type: str, function: Callable[..., Any]) -> bool:
    """True if the first parameter of a task is its context: it is named `ctx`, or annotated as `TaskContext`."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False  # `Signature` raises the error later
    hints = hints_of(function)
    for name in parameters[1:]:
        if hints.get(name) is TaskContext:
            raise InvalidRequest(f"task {type!r} takes its TaskContext as {name!r}; it must be the first parameter")
    if not parameters:
        return False
    hint = hints.get(parameters[0], TaskContext if parameters[0] == "ctx" else None)
    if parameters[0] == "ctx" and hint not in (TaskContext, Any):
        raise InvalidRequest(
            f"task {type!r} has a first parameter `ctx`, which gets its TaskContext, but declares it as "
            f"{name_of(hint)}: declare it as TaskContext, or give a parameter of the payload another name"
        )
    return hint is TaskContext or parameters[0] == "ctx"
