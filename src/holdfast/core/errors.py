"""Every error that holdfast raises, as one tree, and the record of an error in a history.

    HoldfastError
    ├── InvalidRequest             a call that can never work: wrong arguments, bad name, illegal value
    │   ├── NotSerializable        a value that has no JSON form
    │   ├── PayloadTooLarge        a value over a size limit
    │   ├── FlowRefused            a text that is not a flow; lists every mistake in it
    │   └── UnknownWorkflow        a type that is not registered here
    ├── KeyConflict                this key already belongs to a run with another payload
    ├── RunNotFound                no run with this id or key
    ├── ScheduleNotFound           no schedule with this name
    ├── RunFinished                the run has ended and takes no messages
    ├── RunBusy                    a worker holds the run right now
    ├── LeaseLost                  this worker no longer holds the run; its writes are refused
    ├── StoreUnavailable           the store cannot be reached or written right now
    ├── SchemaOutOfDate            the store does not fit this version of holdfast
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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec

TRACEBACK_LIMIT_BYTES = 16 * 1024
MESSAGE_LIMIT_CHARACTERS = 4_000

ErrorKind = type[BaseException]


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as data: what a store keeps of it."""

    type: str
    """The name of its class, such as `ValueError`."""
    message: str
    """Its text."""
    types: tuple[str, ...] = ()
    """The names of its class and base classes with their modules, most specific first."""
    traceback: str = ""
    """Its traceback as text; of a long one, the end."""
    attempts: int = 0
    """Number of attempts made, if it is the error of a step."""
    cause: ErrorRecord | None = None
    """The error that caused it."""
    locations: tuple[str, ...] = ()
    """The operations of the run whose failure led to it."""

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
    """The base class of every error that holdfast raises."""


class InvalidRequest(HoldfastError, ValueError):
    """Raised for a call that can never work: an unknown option, a value of the wrong type, a bad name."""


class NotSerializable(InvalidRequest):
    """Raised for a value that cannot be stored as JSON."""


class PayloadTooLarge(InvalidRequest):
    """Raised for a value whose JSON exceeds a limit; the message names the limit."""


class Unreadable(InvalidRequest):
    """Raised when something in the store cannot be decoded: it was edited by hand, or written by a bug."""


class UnknownWorkflow(InvalidRequest):
    """Raised for a function or type that is not a registered workflow or task."""


class Mistake(msgspec.Struct, frozen=True):
    """One thing that is wrong with the text of a flow."""

    line: int
    """Its line, counted from 1."""
    column: int
    """Its column, counted from 1."""
    source_line: str
    """The text of that line."""
    message: str
    """What is wrong."""
    advice: str
    """What to write instead."""

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}; {self.advice}\n    {self.source_line}".rstrip()


class FlowRefused(InvalidRequest):
    """Raised for a text that is not a flow. It has every mistake of the text."""

    def __init__(self, mistakes: tuple[Mistake, ...], *, total: int = 0) -> None:
        count = max(total, len(mistakes))
        listed = "\n".join(str(mistake) for mistake in mistakes)
        more = f"\nand {count - len(mistakes)} more" if count > len(mistakes) else ""
        super().__init__(f"the flow has {count} mistake{'' if count == 1 else 's'}:\n{listed}{more}")
        self.mistakes = mistakes
        """The mistakes, in the order of their places."""
        self.total = count
        """The number of mistakes, including those that are not listed."""


class KeyConflict(HoldfastError):
    """Raised when the key of a start belongs to a run with another type or payload."""

    def __init__(self, message: str, *, run_id: str, index: int | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        """The run that has the key."""
        self.index = index
        """The position of the run in `start_many`."""


class RunNotFound(HoldfastError, LookupError):
    """Raised when no run has this id or key."""


class ScheduleNotFound(HoldfastError, LookupError):
    """Raised when no schedule has this name."""


class RunFinished(HoldfastError):
    """Raised when a run has ended and accepts no further messages."""


class RunBusy(HoldfastError):
    """Raised when a worker holds the run that is to be changed. Try again later, or use `force=True`."""


class LeaseLost(HoldfastError):
    """Raised in a step body, by `heartbeat` and `progress`, when the attempt no longer counts. Stop the work."""


class StoreUnavailable(HoldfastError):
    """Raised when the store cannot be reached or written right now. Repeating the call is safe."""

    is_noted: bool = False
    """The store itself logs when the outage begins and ends."""
    is_held_up: bool = False
    """The store works, but another transaction holds what this call needs, or the call is too large."""


class SchemaOutOfDate(HoldfastError):
    """Raised when the store does not fit this version of holdfast. The message says which command to run."""


class HistoryDiverged(HoldfastError):
    """The code of a workflow no longer fits what was recorded for a run. The run is blocked."""

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
        """The recorded and the requested operations side by side."""
        self.what = what or message
        """The problem in a few words."""
        self.recorded = recorded
        """The operation that the history has, if it is known."""
        self.requested = requested
        """The operation that the code asked for instead, if it is known."""
        self.hints = hints
        """Lines of code that let runs like this one continue."""


class WorkflowViolation(HoldfastError, RuntimeError):
    """Raised when workflow code does on its event loop what only a step may do: sockets, threads, subprocesses.

    The run is blocked. Blocking calls such as `open()` cannot be seen and are not refused; put them into steps.
    """


class _RecordedError(HoldfastError):
    """An error rebuilt from its record, so that it is the same on each replay."""

    def __init__(self, message: str, record: ErrorRecord) -> None:
        super().__init__(message)
        self.record = record
        """The recorded error as data."""

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
    """Raised by `run.result()` when the run failed."""

    def __init__(self, run_id: str, record: ErrorRecord) -> None:
        super().__init__(f"run {run_id} failed: {_with_causes(record)}", record)
        self.run_id = run_id
        """The run that failed."""

    @property
    def error(self) -> ErrorRecord:
        """Why the run failed: the same as `record`."""
        return self.record


class RunCancelled(HoldfastError):
    """Raised by `run.result()` when the run was cancelled."""

    def __init__(self, run_id: str, reason: str = "") -> None:
        super().__init__(f"run {run_id} was cancelled" + (f": {reason}" if reason else ""))
        self.run_id = run_id
        """The run that was cancelled."""
        self.reason = reason
        """The reason that was given to `cancel`."""


class WorkflowError(HoldfastError):
    """The base class of what durable operations raise in workflow code."""


class StepFailed(_RecordedError, WorkflowError):
    """Raised by a step that failed for good: no attempts are left, or its error is not retried."""

    def __init__(self, location: str, record: ErrorRecord) -> None:
        tries = f"{record.attempts} attempt" + ("" if record.attempts == 1 else "s")
        super().__init__(f"step {location!r} failed after {tries}: {record}", record)
        self.location = location
        """The location of the step."""

    @property
    def attempts(self) -> int:
        """Number of attempts made."""
        return self.record.attempts


class StepTimeout(StepFailed):
    """Raised by a step whose last attempt took longer than its `timeout`."""


class WaitTimeout(WorkflowError, TimeoutError):
    """Raised by a wait when nothing came within its `timeout`."""

    def __init__(self, message: str = "", location: str = "") -> None:
        super().__init__(message)
        self.location = location
        """The location of the wait."""


class ChildFailed(_RecordedError, WorkflowError):
    """Raised when a child run failed or was cancelled."""

    def __init__(self, run_id: str, kind: str, record: ErrorRecord, location: str = "") -> None:
        # The cause first: lists cut long texts at their end, and grandchildren repeat the sentence about the run.
        cause = record.message if record.matches(ChildFailed) else str(record)
        super().__init__(f"{cause} (child run {run_id} {'failed' if kind == 'failed' else 'was cancelled'})", record)
        self.run_id = run_id
        """The child run."""
        self.kind = kind
        """`failed` or `cancelled`."""
        self.location = location
        """The location of the child in the parent."""

    @property
    def cause(self) -> ErrorRecord:
        """The error of the child: the same as `record`."""
        return self.record


class JoinFailed(WorkflowError):
    """Raised when branches of a join, or children of a map, failed."""

    def __init__(self, location: str, results: Mapping[Any, Any], errors: Mapping[Any, BaseException]) -> None:
        listed = _listed(errors)
        super().__init__(f"{len(errors)} of {len(results) + len(errors)} branches of {location!r} failed: {listed}")
        self.results = dict(results)
        """The results of those that succeeded: by key; of a map, by index."""
        self.errors = dict(errors)
        """The errors of the others, likewise."""


class RaceFailed(WorkflowError):
    """Raised when every branch of a race failed."""

    def __init__(self, location: str, errors: Mapping[str, BaseException]) -> None:
        listed = _listed(errors)
        super().__init__(f"all {len(errors)} branches of {location!r} failed: {listed}")
        self.errors = dict(errors)
        """The error of each branch, by key."""


class Fatal(Exception):
    """Raise it in a step to fail at once, without a retry."""


class Rollback(Exception):
    """Raise it in a workflow or step to undo the finished steps and end the run as failed."""


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


class ErrorCode(NamedTuple):
    """How programs recognize an error. `code` is a stable word, `exit` the exit code of a command."""

    code: str
    status: int
    exit: int


ERROR_CODES: dict[type[BaseException], ErrorCode] = {
    HoldfastError: ErrorCode("failed", 500, 1),
    InvalidRequest: ErrorCode("invalid_request", 400, 2),
    NotSerializable: ErrorCode("not_serializable", 400, 2),
    PayloadTooLarge: ErrorCode("payload_too_large", 413, 2),
    Unreadable: ErrorCode("unreadable", 500, 2),
    FlowRefused: ErrorCode("flow_refused", 422, 2),
    UnknownWorkflow: ErrorCode("unknown_workflow", 404, 2),
    KeyConflict: ErrorCode("key_conflict", 409, 6),
    RunNotFound: ErrorCode("run_not_found", 404, 3),
    ScheduleNotFound: ErrorCode("schedule_not_found", 404, 3),
    RunFinished: ErrorCode("run_finished", 409, 6),
    RunBusy: ErrorCode("run_busy", 409, 6),
    LeaseLost: ErrorCode("lease_lost", 409, 1),
    StoreUnavailable: ErrorCode("store_unavailable", 503, 5),
    SchemaOutOfDate: ErrorCode("schema_out_of_date", 503, 5),
    HistoryDiverged: ErrorCode("history_diverged", 500, 1),
    WorkflowViolation: ErrorCode("workflow_violation", 500, 1),
    RunFailed: ErrorCode("run_failed", 200, 10),
    RunCancelled: ErrorCode("run_cancelled", 200, 11),
    WorkflowError: ErrorCode("workflow_error", 500, 1),
}
"""The table. The outcome of a run is no failure of the request that asks for it, so its status is 200."""


def error_code_of(error: BaseException) -> ErrorCode | None:
    """Return the row of an expected error; None if the error is a bug."""
    return next((ERROR_CODES[kind] for kind in type(error).__mro__ if kind in ERROR_CODES), None)


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to a misspelt one, if its similarity is at least `cutoff` (0 to 1)."""
    import difflib  # imported here, because it is slow to load and needed only for mistakes

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def refuse_unknown(
    kind: str, given: Iterable[str], known: Iterable[str], *, of: str = "", advice: str = ""
) -> NoReturn:
    """Raise `InvalidRequest` for the given names that are not known.

    `kind` says what they are (`option`, `filter`, `parameter`), `of` names their owner, and `advice` says what to do.
    """
    names = list(known)
    unknown = [name for name in given if name not in names]
    near = [found for name in unknown if (found := nearest(name, names)) is not None]
    owner = f" of {of}" if of else ""
    text = f"unknown {kind} {', '.join(unknown)}{owner}"
    if near:
        text += f"; did you mean {', '.join(near)}?"
    listed = f"the {kind}s{owner} are {', '.join(names)}" if names else f"{of or 'it'} has no {kind}s"
    raise InvalidRequest(f"{text}{'' if near else ';'} {advice or listed}")
