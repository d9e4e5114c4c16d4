"""The end of an attempt at a step, and the verdict for the step: settled, or tried again later."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from holdfast.core.errors import ErrorRecord, HoldfastError
from holdfast.core.model import EntryState
from holdfast.core.retry import worker_lost
from holdfast.runner.operation import StepCall


class Returned(msgspec.Struct, frozen=True):
    """The body of the attempt returned."""

    value: Any


class Raised(msgspec.Struct, frozen=True):
    """The body of the attempt raised."""

    error: BaseException


class TimedOut(msgspec.Struct, frozen=True):
    """The attempt took too long. Its body may still be running, so by default it is not retried."""


AttemptEnd = Returned | Raised | TimedOut


class Settled(msgspec.Struct, frozen=True):
    """The step is settled with this outcome."""

    state: EntryState
    result: str | None = None
    error: ErrorRecord | None = None


class TryAgain(msgspec.Struct, frozen=True):
    """The step waits for its next attempt. The error is None if the worker crashed during the last one."""

    error: ErrorRecord | None = None


def judge_attempt(call: StepCall, end: AttemptEnd) -> Settled | TryAgain:
    """Count an attempt, and return the verdict for its step. A result that cannot be stored is a failure."""
    match end:
        case Returned(value):
            try:
                text, call.value = call.codec.store(value, f"result of step {call.location!r}")
            except HoldfastError as refused:
                return judge_attempt(call, Raised(refused))
            call.attempts += 1
            return Settled(EntryState.DONE, text)
        case Raised(error):
            call.attempts += 1
            may_retry = call.options.retry.allows(error, call.attempts)
            record = ErrorRecord.of(error, attempts=call.attempts)
        case TimedOut():
            call.attempts += 1
            may_retry = call.options.retry_timeout and call.attempts < call.options.retry.max_attempts
            message = f"an attempt took longer than {call.options.timeout} s"
            record = ErrorRecord(type="StepTimeout", message=message, types=("TimeoutError",), attempts=call.attempts)
        case _:
            assert_never(end)
    return TryAgain(record) if may_retry else Settled(EntryState.FAILED, error=record)


def charge_crashes(call: StepCall, crashes: int) -> Settled | TryAgain:
    """Count worker crashes as attempts at a step that was at the frontier of the run."""
    call.attempts += crashes
    if call.attempts >= call.options.retry.max_attempts:
        return Settled(EntryState.FAILED, error=worker_lost(call.attempts))
    return TryAgain()
