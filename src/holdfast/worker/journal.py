"""The journal: the log records of a worker about a run. Each record names the run; none contains user data.

A record contains only the class of an error, because the message may contain user data. The run keeps the message,
for readers who have access to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.core.checkpoint import Block, Finish, Next, StartRollback
from holdfast.core.model import Run
from holdfast.core.rules import is_cancellation

if TYPE_CHECKING:
    from holdfast.runner.definition import Definition
    from holdfast.runner.flow_type import FlowType
    from holdfast.worker.executor import Body

_log = logging.getLogger("holdfast.worker")


class Journal:
    """Writes the log records of one worker about one run."""

    __slots__ = ("_run", "_worker")

    def __init__(self, run: Run, worker: str) -> None:
        self._run = run
        self._worker = worker

    def info(self, text: str, *args: object) -> None:
        _log.info(text, *args, extra=self._about())

    def warning(self, text: str, *args: object) -> None:
        _log.warning(text, *args, extra=self._about())

    def trouble(self, text: str, error: BaseException) -> None:
        """Log an error that the workflow did not cause. The traceback appears only at level DEBUG."""
        about = self._about(error=type(error).__name__)
        _log.error(f"{text}: %s", self._run.id, about["error"], extra=about)
        _log.debug(text, self._run.id, exc_info=error, extra=about)

    def slow_code(self, seconds: float, *, is_flow: bool) -> None:
        """Warn that the run's code took long, because every other run of the worker waited for it."""
        self.warning(
            "the code of run %s (%s) blocked the worker's loop for %.0f ms; %s",
            self._run.id,
            self._run.type,
            seconds * 1000,
            "call a task for large values and heavy computation" if is_flow else "move slow code into a step",
        )

    def survivors(self, definition: Definition | FlowType, lines: Iterable[str]) -> None:
        """Warn about code that cannot leave memory.

        It happens at every suspension, so each line of a type is logged once.
        """
        for line in sorted(set(lines) - definition.surviving_lines):
            definition.surviving_lines.add(line)
            self.warning(
                "workflow %s swallows every exception at %s, so holdfast cannot close it when a run suspends; catch "
                "`Exception` there: a bare `except` and `except BaseException` also catch the closing",
                definition.type,
                line,
            )

    def attempt_failed(self, body: Body) -> None:
        """Log a failed attempt at a step."""
        error = "StepTimeout" if body.is_timed_out else type(body.error).__name__
        location = body.call.location
        about = self._about(location=location, error=error)
        _log.info(
            "attempt %d at %s of run %s failed: %s", body.info.attempt, location, self._run.id, error, extra=about
        )

    def let_go(self, next: Next) -> None:
        """Log the error because of which the worker released a run, if there is one."""
        if not isinstance(next, (Finish, StartRollback, Block)) or next.error is None:
            return
        error = next.error
        what = {Finish: "failed", StartRollback: "rolls back", Block: "is blocked"}[type(next)]
        if is_cancellation(error):
            what, level = "is cancelled", logging.INFO
        else:
            level = logging.WARNING
        about = self._about(location=error.locations[0] if error.locations else None, error=error.type)
        _log.log(level, "run %s of %s %s: %s", self._run.id, self._run.type, what, error.type, extra=about)

    def _about(self, *, location: str | None = None, error: str | None = None) -> dict[str, str | None]:
        run = self._run
        return {"run_id": run.id, "type": run.type, "worker": self._worker, "location": location, "error": error}
