"""Error codes: one table that maps each error to its code, its HTTP status and its exit code.

Everything that shows errors to programs uses this table: the command line its exit codes, HTTP its statuses and codes.
An error that is not listed has the row of its nearest base class.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core import errors


class ErrorCode(NamedTuple):
    """How programs recognize an error. `code` is a stable word, `exit` the exit code of a command."""

    code: str
    status: int
    exit: int


ERROR_CODES: dict[type[BaseException], ErrorCode] = {
    errors.HoldfastError: ErrorCode("failed", 500, 1),
    errors.InvalidRequest: ErrorCode("invalid_request", 400, 2),
    errors.NotSerializable: ErrorCode("not_serializable", 400, 2),
    errors.PayloadTooLarge: ErrorCode("payload_too_large", 413, 2),
    errors.Unreadable: ErrorCode("unreadable", 500, 2),
    errors.FlowRefused: ErrorCode("flow_refused", 422, 2),
    errors.UnknownWorkflow: ErrorCode("unknown_workflow", 404, 2),
    errors.KeyConflict: ErrorCode("key_conflict", 409, 6),
    errors.RunNotFound: ErrorCode("run_not_found", 404, 3),
    errors.ScheduleNotFound: ErrorCode("schedule_not_found", 404, 3),
    errors.RunFinished: ErrorCode("run_finished", 409, 6),
    errors.RunBusy: ErrorCode("run_busy", 409, 6),
    errors.LeaseLost: ErrorCode("lease_lost", 409, 1),
    errors.StoreUnavailable: ErrorCode("store_unavailable", 503, 5),
    errors.SchemaOutOfDate: ErrorCode("schema_out_of_date", 503, 5),
    errors.HistoryDiverged: ErrorCode("history_diverged", 500, 1),
    errors.WorkflowViolation: ErrorCode("workflow_violation", 500, 1),
    errors.RunFailed: ErrorCode("run_failed", 200, 10),
    errors.RunCancelled: ErrorCode("run_cancelled", 200, 11),
    errors.WorkflowError: ErrorCode("workflow_error", 500, 1),
}
"""The table. The outcome of a run is no failure of the request that asks for it, so its status is 200."""


def error_code_of(error: BaseException) -> ErrorCode | None:
    """Return the row of an expected error; None if the error is a bug."""
    return next((ERROR_CODES[kind] for kind in type(error).__mro__ if kind in ERROR_CODES), None)
