"""The journal: what a worker logs about a run. Each record names the run; none has a value of the user's.

Of an error only its class is told, as its text may be made of values: the run has it, for whoever may see it.
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
    from holdfast.worker.executor import Body

_log = logging.getLogger("holdfast.worker")


class Journal:
    """Logs about one run, in the name of one worker."""

    __slots__ = ("_run", "_worker")

    def __init__(self, run: Run, worker: str) -> None:
        self._run = run
        self._worker = worker

    def info(self, text: str, *args: object) -> None:
        _log.info(text, *args, extra=self._about())

    def warning(self, text: str, *args: object) -> None:
        _log.warning(text, *args, extra=self._about())

    def trouble(self, text: str, error: BaseException) -> None:
        """An error that is not of the workflow's making. Its traceback is told only to those who look closely."""
        about = self._about(error=type(error).__name__)
        _log.error(f"{text}: %s", self._run.id, about["error"], extra=about)
        _log.debug(text, self._run.id, exc_info=error, extra=about)

    def slow_code(self, seconds: float) -> None:
        """The code of the run took long, and every other run of the worker waited for it."""
        self.warning(
            "the code of run %s (%s) kept the worker's loop for %.0f ms; move what takes long into a step",
            self._run.id,
            self._run.type,
            seconds * 1000,
        )

    def survivors(self, definition: Definition, lines: Iterable[str]) -> None:
        """Code cannot leave memory. Each line of a type is named once, because that happens at every suspension."""
        for line in sorted(set(lines) - definition.surviving_lines):
            definition.surviving_lines.add(line)
            self.warning(
                "workflow %s swallows every exception at %s, so it cannot be closed when a run suspends; catch "
                "`Exception` there, not everything: a bare `except` and `except BaseException` also catch the closing",
                definition.type,
                line,
            )

    def attempt_failed(self, body: Body) -> None:
        """An attempt at a step did not succeed."""
        error = "StepTimeout" if body.is_timed_out else type(body.error).__name__
        location = body.call.location
        about = self._about(location=location, error=error)
        _log.info(
            "attempt %d at %s of run %s failed: %s", body.info.attempt, location, self._run.id, error, extra=about
        )

    def let_go(self, next: Next) -> None:
        """A run was let go; if that is because of an error, people want to know."""
        if not isinstance(next, (Finish, StartRollback, Block)) or next.error is None:
            return
        error = next.error
        what = {Finish: "failed", StartRollback: "undoes what it did", Block: "is blocked"}[type(next)]
        if is_cancellation(error):
            what, level = "is cancelled", logging.INFO
        else:
            level = logging.WARNING
        about = self._about(location=error.locations[0] if error.locations else None, error=error.type)
        _log.log(level, "run %s of %s %s: %s", self._run.id, self._run.type, what, error.type, extra=about)

    def _about(self, *, location: str | None = None, error: str | None = None) -> dict[str, str | None]:
        run = self._run
        return {"run_id": run.id, "type": run.type, "worker": self._worker, "location": location, "error": error}
