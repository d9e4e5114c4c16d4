"""The public names of holdfast, all in one place. `holdfast` itself offers them, and loads them at first use."""

from holdfast.app import Holdfast
from holdfast.core.errors import (
    ChildFailed,
    ErrorRecord,
    Fatal,
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
from holdfast.core.retry import Retry
from holdfast.core.signals import Signal
from holdfast.core.states import RunState
from holdfast.engine.check import RunCheck
from holdfast.engine.export import Export, LeftRun
from holdfast.engine.handle import RunHandle
from holdfast.engine.importing import ImportReport, RefusedRun
from holdfast.engine.info import (
    AuditInfo,
    DeadLetterInfo,
    EntryInfo,
    RunInfo,
    ScheduleInfo,
    TopicInfo,
    TypeInfo,
    WaitInfo,
)
from holdfast.engine.sync import SyncRunHandle
from holdfast.runner.child import Child
from holdfast.runner.context import Context
from holdfast.runner.dry_run import Fit
from holdfast.runner.looping import Break, Continue
from holdfast.runner.message import Message
from holdfast.runner.registry import Registry, Step, SyncWorkflow, Task, Workflow
from holdfast.runner.step_info import StepInfo, step_info
from holdfast.runner.sync_child import SyncChild
from holdfast.runner.sync_context import SyncContext
from holdfast.runner.task_context import TaskContext
from holdfast.worker.worker import Worker

__all__ = [
    "AuditInfo",
    "Break",
    "Child",
    "ChildFailed",
    "Context",
    "Continue",
    "DeadLetterInfo",
    "EntryInfo",
    "ErrorRecord",
    "Export",
    "Fatal",
    "Fit",
    "HistoryDiverged",
    "Holdfast",
    "HoldfastError",
    "ImportReport",
    "InvalidRequest",
    "JoinFailed",
    "KeyConflict",
    "LeaseLost",
    "LeftRun",
    "Message",
    "NotSerializable",
    "PayloadTooLarge",
    "RaceFailed",
    "RefusedRun",
    "Registry",
    "Retry",
    "Rollback",
    "RunBusy",
    "RunCancelled",
    "RunCheck",
    "RunFailed",
    "RunFinished",
    "RunHandle",
    "RunInfo",
    "RunNotFound",
    "RunState",
    "ScheduleInfo",
    "ScheduleNotFound",
    "SchemaOutOfDate",
    "Signal",
    "Step",
    "StepFailed",
    "StepInfo",
    "StepTimeout",
    "StoreUnavailable",
    "SyncChild",
    "SyncContext",
    "SyncRunHandle",
    "SyncWorkflow",
    "Task",
    "TaskContext",
    "TopicInfo",
    "TypeInfo",
    "UnknownWorkflow",
    "Unreadable",
    "WaitInfo",
    "WaitTimeout",
    "Worker",
    "Workflow",
    "WorkflowViolation",
    "step_info",
]
