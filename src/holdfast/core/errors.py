"""Every error holdfast raises, as one small tree, and the record an error leaves in a history.

    HoldfastError
    ├── InvalidRequest             a call that can never work: wrong arguments, bad name, illegal value
    │   ├── NotSerializable        a value that has no JSON form
    │   ├── PayloadTooLarge        a value over a size limit
    │   └── UnknownWorkflow        a type nobody registered here
    ├── KeyConflict                this key already belongs to a run with another payload
    ├── RunNotFound                no run with this id or key
    ├── ScheduleNotFound           no schedule of this name
    ├── RunFinished                the run has ended and takes no more
    ├── RunBusy                    a worker holds the run right now
    ├── LeaseLost                  somebody else holds the run; what was written is refused
    ├── StoreUnavailable           the store cannot be reached or written at the moment
    ├── SchemaOutOfDate            the store was made by another version of holdfast
    ├── HistoryDiverged            the code no longer fits the recorded history
    ├── WorkflowViolation          workflow code did what only a step may do
    ├── RunFailed, RunCancelled    how `run.result()` reports an end that is no success
    └── WorkflowError              raised inside workflow code, catchable there
        ├── StepFailed             a step used up its attempts
        │   └── StepTimeout        ... because an attempt took too long
        ├── WaitTimeout            a wait reached its time-out (also a TimeoutError)
        ├── ChildFailed            a child run failed or was cancelled
        ├── JoinFailed, RaceFailed branches of a join or race failed

    Raised by users, not by holdfast: Fatal (do not retry this step), Rollback (undo what was done).

Errors are stored as data (`ErrorRecord`); classes are never rebuilt from stored names.
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

    `locations` are the operations of the run whose failure it goes back to.
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
        """The record of a live exception. An error that already carries a record keeps it as its cause."""
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
        """Whether the recorded error was a `kind`, by the names of its classes."""
        return _qualified(kind) in self.types

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def _faults(error: BaseException, seen: set[int]) -> Iterator[str]:
    """The locations of the operations whose failure led to an error, through causes, groups and branches."""
    if id(error) in seen:
        return
    seen.add(id(error))
    if isinstance(error, (StepFailed, WaitTimeout, ChildFailed)):
        yield error.location
    is_of_operations = isinstance(error, (WorkflowError, BaseExceptionGroup))
    # An operation that fails while code handles an earlier failure: that one was caught, and stays so.
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
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may do anything; the record must still be made
        return f"<no message: {type(broken).__name__} in {type(error).__name__}.__str__>"


def _traceback_of(error: BaseException) -> str:
    report = error.report if isinstance(error, HistoryDiverged) else ""  # which says more than any line of the engine
    text = _printable(report or "".join(tracebacks.format_exception(error)))
    if len(text.encode()) <= TRACEBACK_LIMIT_BYTES:
        return text
    # The end names the line that raised; the beginning is mostly the engine's own frames.
    return "…" + text.encode()[-TRACEBACK_LIMIT_BYTES + 3 :].decode(errors="ignore")


def _printable(text: str) -> str:
    """Text every store can keep: no lone surrogates, no NUL."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


class HoldfastError(Exception):
    """The root of every error holdfast raises."""


class InvalidRequest(HoldfastError, ValueError):
    """A call that can never work as written."""


class NotSerializable(InvalidRequest):
    """A value that cannot be stored as JSON and come back equal."""


class PayloadTooLarge(InvalidRequest):
    """A value whose JSON is larger than the limit that is named in the message."""


class Unreadable(InvalidRequest):
    """Something in the store that cannot be decoded: it was edited by hand, or written by a bug."""


class UnknownWorkflow(InvalidRequest):
    """A type, or function, that is not registered here."""


class KeyConflict(HoldfastError):
    """The key is taken by a run with another type or payload; `run_id` is that run."""

    def __init__(self, message: str, *, run_id: str, index: int | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.index = index


class RunNotFound(HoldfastError, LookupError):
    """No run with this id or key."""


class ScheduleNotFound(HoldfastError, LookupError):
    """No schedule of this name."""


class RunFinished(HoldfastError):
    """The run has ended; it takes no messages any more."""


class RunBusy(HoldfastError):
    """A worker holds the run; try again when it does not, or use force."""


class LeaseLost(HoldfastError):
    """Another worker holds the run now; nothing was written."""


class StoreUnavailable(HoldfastError):
    """The store cannot be reached or written right now. Repeating the call is safe.

    `is_noted`: the store logs by itself when this began and when it is over; nobody else needs to. `is_held_up`:
    somebody holds what this call needs, or it is too much at once; the store is well, and others need not wait.
    """

    is_noted: bool = False
    is_held_up: bool = False


class SchemaOutOfDate(HoldfastError):
    """The store's schema is not the one that this version of holdfast needs."""


class HistoryDiverged(HoldfastError):
    """The workflow's code no longer fits what was recorded for this run; `report` shows both side by side.

    `what` says in a few words what is wrong. `recorded` and `requested` are the two operations that differ, where
    known, and `hints` are lines of code that let runs like this one go on.
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
    """Workflow code tried what only a step may do: I/O, threads, subprocesses, another loop."""


class _RecordedError(HoldfastError):
    """An error that was rebuilt from its record, the same each time."""

    def __init__(self, message: str, record: ErrorRecord) -> None:
        super().__init__(message)
        self.record = record

    @property
    def type(self) -> str:
        """The class name of the error that was recorded, such as `ValueError`."""
        return self.record.type

    @property
    def message(self) -> str:
        """The text of the error that was recorded."""
        return self.record.message

    def matches(self, kind: ErrorKind) -> bool:
        """Whether the recorded error was a `kind`."""
        return self.record.matches(kind)


class RunFailed(_RecordedError):
    """The run ended as failed; `error` is the record of why."""

    def __init__(self, run_id: str, record: ErrorRecord) -> None:
        super().__init__(f"run {run_id} failed: {_with_causes(record)}", record)
        self.run_id = run_id

    @property
    def error(self) -> ErrorRecord:
        return self.record


class RunCancelled(HoldfastError):
    """The run ended as cancelled; `reason` is what the canceller said."""

    def __init__(self, run_id: str, reason: str = "") -> None:
        super().__init__(f"run {run_id} was cancelled" + (f": {reason}" if reason else ""))
        self.run_id = run_id
        self.reason = reason


class WorkflowError(HoldfastError):
    """What durable operations raise inside workflow code."""


class StepFailed(_RecordedError, WorkflowError):
    """A step failed for good: its attempts are used up, or the error was not worth another."""

    def __init__(self, location: str, record: ErrorRecord) -> None:
        tries = f"{record.attempts} attempt" + ("" if record.attempts == 1 else "s")
        super().__init__(f"step {location!r} failed after {tries}: {record}", record)
        self.location = location

    @property
    def attempts(self) -> int:
        return self.record.attempts


class StepTimeout(StepFailed):
    """The last attempt of a step took longer than its time-out."""


class WaitTimeout(WorkflowError, TimeoutError):
    """Nothing came before the wait's time-out."""

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
    """Branches of a join, or children of a map, failed: `results` and `errors` by key (of a map: by index)."""

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
    """Raise it in a step to fail at once, without another attempt."""


class Rollback(Exception):
    """Raise it in a workflow, or in a step, to undo the finished steps and end the run as failed."""


def _listed(errors: Mapping[Any, BaseException]) -> str:
    """Errors by key, the first few of them."""
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
