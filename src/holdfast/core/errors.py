"""Every error that holdfast raises, as one tree, and the record of an error in a history.

    HoldfastError
    ├── InvalidRequest             a call that can never work: wrong arguments, bad name, illegal value
    │   ├── NotSerializable        a value that has no JSON form
    │   ├── PayloadTooLarge        a value over a size limit
    │   └── UnknownWorkflow        a type that is not registered here
    ├── KeyConflict                this key already belongs to a run with another payload
    ├── RunNotFound                no run with this id or key
    ├── ScheduleNotFound           no schedule with this name
    ├── RunFinished                the run has ended and takes no messages
    ├── RunBusy                    a worker holds the run right now
    ├── LeaseLost                  this worker no longer holds the run; its writes are refused
    ├── StoreUnavailable           the store cannot be reached or written right now
    ├── SchemaOutOfDate            the schema does not fit this version of holdfast
    ├── HistoryDiverged            the code no longer fits the recorded history
    ├── WorkflowViolation          workflow code did what only a step may do
    ├── RunFailed, RunCancelled    raised by `run.result()` if the run did not succeed
    └── WorkflowError              raised inside workflow code, which can catch it
        ├── StepFailed             a step used up its attempts
        │   └── StepTimeout        ... because an attempt took too long
        ├── WaitTimeout            a wait reached its timeout (also a TimeoutError)
        ├── ChildFailed            a child run failed or was cancelled
        ├── JoinFailed, RaceFailed branches of a join or race failed

    Raised by users, not by holdfast: Fatal (do not retry this step), Rollback (undo the finished steps).

Errors are stored as data (`ErrorRecord`). Classes are never rebuilt from stored names.
"""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

TRACEBACK_LIMIT_BYTES = 16 * 1024
MESSAGE_LIMIT_CHARACTERS = 4_000

ErrorKind = type[BaseException]


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as data. `types` are the names of its classes, most specific first.

    `locations` are the operations of the run whose failures caused it.
    """

    type: str
    message: str
    types: tuple[str, ...] = ()
    traceback: str = ""
    attempts: int = 0
    cause: ErrorRecord | None = None
    locations: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: BaseException, *, attempts: int = 0) -> ErrorRecord:
        """Return the record of a live exception. If it already carries a record, that becomes the cause."""
        cause = getattr(error, "record", None)
        return cls(
            type=type(error).__name__,
            message=_printable(_message_of(error)),
            types=tuple(_qualified(kind) for kind in type(error).__mro__ if kind not in (object, BaseException)),
            traceback=_traceback_of(error),
            attempts=attempts or getattr(error, "attempts", 0),
            cause=cause if isinstance(cause, ErrorRecord) else None,
            locations=tuple(dict.fromkeys(_faults(error, set()))),
        )

    def matches(self, kind: ErrorKind) -> bool:
        """True if the recorded error was a `kind`, compared by class name."""
        return _qualified(kind) in self.types

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def _faults(error: BaseException, seen: set[int]) -> Iterator[str]:
    """Yield the locations of the operations whose failures led to an error, through causes, groups and branches."""
    if id(error) in seen:
        return
    seen.add(id(error))
    if isinstance(error, (StepFailed, WaitTimeout, ChildFailed)):
        yield error.location
    is_of_operations = isinstance(error, (WorkflowError, BaseExceptionGroup))
    # If an operation fails while code handles an earlier failure, the earlier one was caught and stays caught.
    parts: list[BaseException | None] = [error.__cause__ or (None if is_of_operations else error.__context__)]
    if isinstance(error, BaseExceptionGroup):
        parts += error.exceptions
    if isinstance(error, (JoinFailed, RaceFailed)):
        parts += error.errors.values()
    for part in parts:
        if part is not None:
            yield from _faults(part, seen)


def _qualified(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message_of(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_LIMIT_CHARACTERS]
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may raise anything; the record is needed anyway
        return f"<no message: {type(broken).__name__} in {type(error).__name__}.__str__>"


def _traceback_of(error: BaseException) -> str:
    report = error.report if isinstance(error, HistoryDiverged) else ""  # more useful than frames of the engine
    text = _printable(report or "".join(tracebacks.format_exception(error)))
    if len(text.encode()) <= TRACEBACK_LIMIT_BYTES:
        return text
    # Keep the end: it names the line that raised. The beginning is mostly the engine's own frames.
    return "…" + text.encode()[-TRACEBACK_LIMIT_BYTES + 3 :].decode(errors="ignore")


def _printable(text: str) -> str:
    """Return text that every store can keep: no lone surrogates, no NUL."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


class HoldfastError(Exception):
    """The base of every error that holdfast raises."""


class InvalidRequest(HoldfastError, ValueError):
    """A call that can never work as written."""


class NotSerializable(InvalidRequest):
    """A value that cannot be stored as JSON and come back equal."""


class PayloadTooLarge(InvalidRequest):
    """A value whose JSON is larger than the limit in the message."""


class Unreadable(InvalidRequest):
    """A row of the store cannot be decoded: it was edited by hand, or a bug wrote it."""


class UnknownWorkflow(InvalidRequest):
    """A type or function that is not registered here."""


class KeyConflict(HoldfastError):
    """The key belongs to a run with another type or payload; `run_id` is that run."""

    def __init__(self, message: str, *, run_id: str, index: int | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.index = index


class RunNotFound(HoldfastError, LookupError):
    """No run with this id or key."""


class ScheduleNotFound(HoldfastError, LookupError):
    """No schedule with this name."""


class RunFinished(HoldfastError):
    """The run has ended and accepts no messages."""


class RunBusy(HoldfastError):
    """A worker holds the run. Try again after the worker has released it, or use force."""


class LeaseLost(HoldfastError):
    """The worker no longer holds the run. Nothing was written."""


class StoreUnavailable(HoldfastError):
    """The store cannot be reached or written right now. Repeating the call is safe.

    `is_noted`: the store itself logs the start and the end of the outage, so callers need not. `is_held_up`: a lock
    blocks this call, or the call is too large. The store is healthy, so other calls need not wait.
    """

    is_noted: bool = False
    is_held_up: bool = False


class SchemaOutOfDate(HoldfastError):
    """The store's schema does not fit this version of holdfast."""


class HistoryDiverged(HoldfastError):
    """The workflow's code no longer fits the history of this run; `report` shows both side by side.

    `what` is a short description. `recorded` and `requested` are the two operations that differ, if known. `hints`
    are lines of code that let such runs continue.
    """

    def __init__(
        self,
        message: str,
        report: str = "",
        *,
        what: str = "",
        recorded: str | None = None,
        requested: str | None = None,
        hints: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.report = report
        self.what = what or message
        self.recorded = recorded
        self.requested = requested
        self.hints = hints


class WorkflowViolation(HoldfastError, RuntimeError):
    """Workflow code tried something that only a step may do: I/O, threads, subprocesses, another event loop."""


class _RecordedError(HoldfastError):
    """An error rebuilt from its record, so that it is the same on each replay."""

    def __init__(self, message: str, record: ErrorRecord) -> None:
        super().__init__(message)
        self.record = record

    @property
    def type(self) -> str:
        """The class name of the recorded error, such as `ValueError`."""
        return self.record.type

    @property
    def message(self) -> str:
        """The message of the recorded error."""
        return self.record.message

    def matches(self, kind: ErrorKind) -> bool:
        """True if the recorded error was a `kind`."""
        return self.record.matches(kind)


class RunFailed(_RecordedError):
    """The run ended as failed; `error` is the record of the cause."""

    def __init__(self, run_id: str, record: ErrorRecord) -> None:
        super().__init__(f"run {run_id} failed: {_with_causes(record)}", record)
        self.run_id = run_id

    @property
    def error(self) -> ErrorRecord:
        return self.record


class RunCancelled(HoldfastError):
    """The run ended as cancelled; `reason` is the reason given for the cancel."""

    def __init__(self, run_id: str, reason: str = "") -> None:
        super().__init__(f"run {run_id} was cancelled" + (f": {reason}" if reason else ""))
        self.run_id = run_id
        self.reason = reason


class WorkflowError(HoldfastError):
    """The base of errors that durable operations raise inside workflow code."""


class StepFailed(_RecordedError, WorkflowError):
    """A step failed for good: its attempts are used up, or its error is not retried."""

    def __init__(self, location: str, record: ErrorRecord) -> None:
        tries = f"{record.attempts} attempt" + ("" if record.attempts == 1 else "s")
        super().__init__(f"step {location!r} failed after {tries}: {record}", record)
        self.location = location

    @property
    def attempts(self) -> int:
        return self.record.attempts


class StepTimeout(StepFailed):
    """The last attempt of a step took longer than its timeout."""


class WaitTimeout(WorkflowError, TimeoutError):
    """A wait reached its timeout."""

    def __init__(self, message: str = "", location: str = "") -> None:
        super().__init__(message)
        self.location = location


class ChildFailed(_RecordedError, WorkflowError):
    """A child run failed or was cancelled: `run_id`, `kind` (`failed` or `cancelled`), `cause`."""

    def __init__(self, run_id: str, kind: str, record: ErrorRecord, location: str = "") -> None:
        super().__init__(f"child run {run_id} {'failed' if kind == 'failed' else 'was cancelled'}: {record}", record)
        self.run_id = run_id
        self.kind = kind
        self.location = location

    @property
    def cause(self) -> ErrorRecord:
        return self.record


class JoinFailed(WorkflowError):
    """Branches of a join, or children of a map, failed: `results` and `errors` by key (in a map: by index)."""

    def __init__(self, location: str, results: Mapping[Any, Any], errors: Mapping[Any, BaseException]) -> None:
        listed = _listed(errors)
        super().__init__(f"{len(errors)} of {len(results) + len(errors)} branches of {location!r} failed: {listed}")
        self.results = dict(results)
        self.errors = dict(errors)


class RaceFailed(WorkflowError):
    """Every branch of a race failed: `errors` by key."""

    def __init__(self, location: str, errors: Mapping[str, BaseException]) -> None:
        listed = _listed(errors)
        super().__init__(f"all {len(errors)} branches of {location!r} failed: {listed}")
        self.errors = dict(errors)


class Fatal(Exception):
    """Raise it in a step to fail at once, without a retry."""


class Rollback(Exception):
    """Raise it in a workflow, or in a step, to undo the finished steps and end the run as failed."""


def _listed(errors: Mapping[Any, BaseException]) -> str:
    """Return the first few errors, by key."""
    shown = [f"{key}: {type(error).__name__}: {error}" for key, error in list(errors.items())[:5]]
    return "; ".join(shown) + (f"; and {len(errors) - 5} more" if len(errors) > 5 else "")


def _with_causes(record: ErrorRecord) -> str:
    texts = [str(record)]
    cause = record.cause
    while cause is not None:
        if str(cause) not in texts[-1]:
            texts.append(str(cause))
        cause = cause.cause
    return "; caused by ".join(texts)
