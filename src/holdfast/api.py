"""The public names of holdfast. `holdfast` itself exports them, and loads them at first use.

Names that are needed only in annotations are in `holdfast.typing`.
"""

from holdfast.app import Holdfast
from holdfast.core.errors import (
    ChildFailed,
    Fatal,
    FlowRefused,
    HistoryDiverged,
    HoldfastError,
    InvalidRequest,
    JoinFailed,
    KeyConflict,
    LeaseLost,
    NotSerializable,
    PayloadTooLarge,
    RaceFailed,
    Rollback,
    RunBusy,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunNotFound,
    ScheduleNotFound,
    SchemaOutOfDate,
    StepFailed,
    StepTimeout,
    StoreUnavailable,
    UnknownWorkflow,
    Unreadable,
    WaitTimeout,
    WorkflowViolation,
)
from holdfast.core.intent import Call
from holdfast.core.news import Signal
from holdfast.core.retry import Retry
from holdfast.core.states import RunState
from holdfast.engine.handle import RunHandle
from holdfast.engine.info import RunInfo
from holdfast.runner.context import Context
from holdfast.runner.looping import Break, Continue
from holdfast.runner.registry import Registry
from holdfast.runner.step_info import TaskContext, step_info
from holdfast.runner.sync_context import SyncContext

__all__ = [
    "Break",
    "Call",
    "ChildFailed",
    "Context",
    "Continue",
    "Fatal",
    "FlowRefused",
    "HistoryDiverged",
    "Holdfast",
    "HoldfastError",
    "InvalidRequest",
    "JoinFailed",
    "KeyConflict",
    "LeaseLost",
    "NotSerializable",
    "PayloadTooLarge",
    "RaceFailed",
    "Registry",
    "Retry",
    "Rollback",
    "RunBusy",
    "RunCancelled",
    "RunFailed",
    "RunFinished",
    "RunHandle",
    "RunInfo",
    "RunNotFound",
    "RunState",
    "ScheduleNotFound",
    "SchemaOutOfDate",
    "Signal",
    "StepFailed",
    "StepTimeout",
    "StoreUnavailable",
    "SyncContext",
    "TaskContext",
    "UnknownWorkflow",
    "Unreadable",
    "WaitTimeout",
    "WorkflowViolation",
    "step_info",
]
