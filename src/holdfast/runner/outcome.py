"""The outcome of a workflow: how the end of its coroutine becomes the end of its run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.checkpoint import Finish
from holdfast.core.errors import ErrorRecord, HoldfastError, StepFailed
from holdfast.core.states import RunState

if TYPE_CHECKING:
    from holdfast.runner.registry import Definition


def error_of(root: asyncio.Task[Any]) -> BaseException | None:
    """What a workflow raised, if it did."""
    if root.cancelled():
        return asyncio.CancelledError("the workflow cancelled itself")
    return root.exception()


def finish_of(definition: Definition, root: asyncio.Task[Any]) -> Finish:
    """The end of a run whose workflow has returned or raised. A result that cannot be stored is a failure, too."""
    error = error_of(root)
    if error is None:
        what = f"result of workflow {definition.type!r}"
        try:
            return Finish(state=RunState.SUCCEEDED, result=definition.result.store(root.result(), what)[0])
        except HoldfastError as refused:
            error = refused
    failed = error if isinstance(error, StepFailed) else error.__cause__
    if definition.is_task and isinstance(failed, StepFailed):
        # A task is its one step, so its error is that of the step.
        return Finish(state=RunState.FAILED, error=replace(failed.record, locations=(failed.location,)))
    return Finish(state=RunState.FAILED, error=ErrorRecord.of(error))
