"""The outcome of a turn: turns the end of a run's code, or an error that stops it, into a change of the run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Block, Finish, StartRollback
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, HoldfastError, StepFailed
from holdfast.core.model import Run
from holdfast.core.states import RunState

if TYPE_CHECKING:
    from holdfast.runner.definition import Definition


class Executed(Protocol):
    """The definition of a run, as far as its end depends on it: a `Definition` or a `FlowType`."""

    @property
    def reason(self) -> ErrorRecord | None: ...

    @property
    def crash_limit(self) -> int: ...


def error_of(root: asyncio.Task[Any]) -> BaseException | None:
    """Return the error that a workflow raised. None if it returned."""
    if root.cancelled():
        return asyncio.CancelledError("the workflow cancelled itself")
    return root.exception()


def finish_of(definition: Definition, root: asyncio.Task[Any]) -> Finish:
    """Return the end of a run whose workflow has returned or raised. A result that cannot be stored is a failure."""
    error = error_of(root)
    if error is None:
        what = f"result of workflow {definition.type!r}"
        try:
            return Finish(state=RunState.SUCCEEDED, result=definition.result.store(root.result(), what)[0])
        except HoldfastError as refused:
            error = refused
    failed = error if isinstance(error, StepFailed) else error.__cause__
    if definition.is_task and isinstance(failed, StepFailed):
        # A task is one step, so the error of the step is the error of the task.
        return Finish(state=RunState.FAILED, error=replace(failed.record, locations=(failed.location,)))
    return Finish(state=RunState.FAILED, error=ErrorRecord.of(error))


def undone_first(end: Finish, *, has_undo: bool) -> Finish | StartRollback:
    """Return the end of a run, or the rollback that comes first if the run did not succeed and has steps to undo."""
    if end.state is RunState.SUCCEEDED or not has_undo:
        return end
    return StartRollback(end=end.state, error=end.error or ErrorRecord(type="Unknown", message=""))


def cancelled(why: str) -> Finish:
    """Return the end of a run that exceeded one of its time limits."""
    return Finish(state=RunState.CANCELLED, error=rules.cancellation(why))


def blocked(run: Run, definition: Executed, error: HoldfastError, now: Micros) -> Block:
    """Return the block of a run that cannot continue. Workers retry it later, because a fixed deploy heals it."""
    previous = run.error if run.error != definition.reason else None
    count, pause = rules.blocked_retry(previous)
    return Block(error=ErrorRecord.of(error, attempts=count), retry_at=now + pause)


def crash_loop(run: Run, definition: Executed) -> Block | None:
    """Return the block of a run with too many worker crashes in a row. None if it has fewer than its limit."""
    if run.crashes < definition.crash_limit:
        return None
    message = f"{run.crashes} workers in a row died with this run; it is not tried again by itself"
    return Block(error=ErrorRecord(type="CrashLoop", message=message))
