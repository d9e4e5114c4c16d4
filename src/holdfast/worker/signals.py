"""Signals and log records of one worker about its runs. A signal about a run reports what the store has committed.

Callers first check that a hook listens (`signals.is_used`), so that unused signals cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextvars import Context
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.checkpoint import (
    Block,
    Checkpoint,
    ContinueAsNew,
    Finish,
    Hold,
    Next,
    Release,
    StartRollback,
    Suspend,
    Verdict,
)
from holdfast.core.clock import SECOND, Clock, Micros, moment
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Entry, EntryKind, EntryState, Run
from holdfast.core.news import Signal, Signals
from holdfast.core.rules import is_cancellation
from holdfast.core.states import RunState

if TYPE_CHECKING:
    from holdfast.runner.definition import Definition
    from holdfast.runner.flow_turn import FlowType
    from holdfast.worker.executor import Body


_BODIES = frozenset({EntryKind.STEP, EntryKind.TX, EntryKind.UNDO})
_SETTLED = {EntryState.DONE: "step.succeeded", EntryState.FAILED: "step.failed", EntryState.RETRYING: "step.retried"}


class SignalSender:
    """Sends the signals of one worker. Each signal names the worker."""

    def __init__(self, signals: Signals, worker: str, clock: Clock) -> None:
        self.signals = signals
        self._worker = worker
        self._clock = clock

    def send_worker(self, name: str) -> None:
        """Report that the worker has started or stopped."""
        if self.signals.wants(name):
            self._send(name, self._clock.now())

    def send_flushed(self, count: int, seconds: float) -> None:
        """Report a committed batch of `count` checkpoints."""
        if self.signals.wants("worker.flushed"):
            self._send("worker.flushed", self._clock.now(), count=count, seconds=seconds)

    def send_started(
        self, run_id: str, type: str, at: Micros, *, parent_id: str | None = None, trace: str | None = None
    ) -> None:
        """Report a run that its parent or a schedule has created."""
        if self.signals.wants("run.started"):
            about = {"run_id": run_id, "type": type, "parent_id": parent_id, "trace": trace}
            self._send("run.started", at, state=RunState.PENDING, **about)

    def send_claimed(self, run: Run, at: Micros, ready_at: Micros | None) -> None:
        """Report a claimed run. `ready_at` is the time from which it could be claimed, if known."""
        if self.signals.wants("run.claimed"):
            waited = None if ready_at is None else max(0, at - ready_at) / SECOND
            self._send_about(run, "run.claimed", at, state=run.state, attempt=run.attempt, seconds=waited)

    def send_lost(self, run: Run) -> None:
        """Report that the worker has lost a run to another process."""
        if self.signals.wants("run.lost"):
            self._send_about(run, "run.lost", self._clock.now())

    def send_step_started(self, run: Run, location: str, kind: EntryKind, attempt: int, context: Context) -> None:
        """Report the start of an attempt. Hooks run in the body's context, so the body sees the variables they set."""
        if self.signals.wants("step.started"):
            now, about = self._clock.now(), {"location": location, "kind": kind.value, "attempt": attempt}
            context.run(self._send_about, run, "step.started", now, **about)

    def send_written(self, run: Run, checkpoint: Checkpoint, verdict: Verdict, seconds: Mapping[str, float]) -> None:
        """Report a committed checkpoint. `seconds` holds the durations of its attempts, by location."""
        now = self._clock.now()
        for entry in checkpoint.entries:
            if entry.kind in _BODIES:
                self._send_entry(run, entry, seconds.get(entry.location))
        for child in checkpoint.children:
            self.send_started(child.id, child.type, now, parent_id=run.id, trace=child.options.trace)
        if not verdict.is_held:
            self._send_leave(run, checkpoint.next, verdict.state, now)

    def _send_leave(self, run: Run, next: Next, state: RunState | None, now: Micros) -> None:
        """Report the state in which the worker released a run.

        The store decides that state. Example: a run that was to pause is paused, even if the checkpoint suspends it.
        """
        asked, error = _asked(next)
        state = asked if state is None else state
        if state is None:
            return
        name = f"run.{state.value}"
        if state is RunState.PENDING:
            name = "run.continued" if isinstance(next, ContinueAsNew) else "run.released"
        elif state is RunState.ROLLING_BACK and not isinstance(next, StartRollback):
            name = "run.released" if isinstance(next, Release) else "run.suspended"
        if self.signals.wants(name):
            took = (now - run.created_at) / SECOND if state.is_end else None
            cause = error.type if error is not None and state is asked else None
            self._send_about(run, name, now, state=state, error=cause, seconds=took)

    def _send_entry(self, run: Run, entry: Entry, seconds: float | None) -> None:
        name = _SETTLED.get(entry.state)
        # An attempt that died with its worker is charged without an error: no process has seen it fail.
        if name is None or (name == "step.retried" and entry.error is None) or not self.signals.wants(name):
            return
        self._send_about(
            run,
            name,
            self._clock.now(),
            location=entry.location,
            kind=entry.kind.value,
            attempt=entry.attempts,
            error=None if entry.error is None else entry.error.type,
            seconds=seconds,
        )

    def _send_about(self, run: Run, name: str, at: Micros, **fields: Any) -> None:
        """Send a signal about a run. `fields` are other fields of `Signal`."""
        about = {"run_id": run.id, "type": run.type, "parent_id": run.parent_id, "trace": run.options.trace}
        self._send(name, at, **about, **fields)

    def _send(self, name: str, at: Micros, **fields: Any) -> None:
        self.signals.send(Signal(name=name, at=moment(at), worker=self._worker, **fields))

    def with_trace(self, run: Run, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint whose new children continue the parent's trace, or the trace it was started with."""
        tracing = self.signals.tracing
        trace = (None if tracing is None else tracing.of_run(run.id)) or run.options.trace
        if trace is None:
            return checkpoint
        children = (replace(one, options=replace(one.options, trace=trace)) for one in checkpoint.children)
        return replace(checkpoint, children=tuple(children))


def _asked(next: Next) -> tuple[RunState | None, ErrorRecord | None]:
    """Return the state that a checkpoint asked for, and the error that caused it."""
    match next:
        case Suspend():
            return RunState.SUSPENDED, None
        case Finish():
            return next.state, next.error
        case StartRollback():
            return RunState.ROLLING_BACK, next.error
        case Block():
            return RunState.BLOCKED, next.error
        case ContinueAsNew() | Release():
            return RunState.PENDING, None
        case Hold():
            return None, None


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

    def error(self, text: str, error: BaseException) -> None:
        """Log an error that the workflow did not cause. The traceback appears only at level DEBUG."""
        about = self._about(error=type(error).__name__)
        _log.error(f"{text}: %s", self._run.id, about["error"], extra=about)
        _log.debug(text, self._run.id, exc_info=error, extra=about)

    def warn_of_slow_code(self, seconds: float, *, is_flow: bool) -> None:
        """Warn that the run's code took long, because every other run of the worker waited for it."""
        self.warning(
            "the code of run %s (%s) blocked the worker's loop for %.0f ms; %s",
            self._run.id,
            self._run.type,
            seconds * 1000,
            "call a task for large values and heavy computation" if is_flow else "move slow code into a step",
        )

    def warn_of_survivors(self, definition: Definition | FlowType, lines: Iterable[str]) -> None:
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

    def log_failed_attempt(self, body: Body) -> None:
        """Log a failed attempt at a step."""
        error = "StepTimeout" if body.is_timed_out else type(body.error).__name__
        location = body.call.location
        about = self._about(location=location, error=error)
        _log.info(
            "attempt %d at %s of run %s failed: %s", body.info.attempt, location, self._run.id, error, extra=about
        )

    def log_release(self, next: Next) -> None:
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
