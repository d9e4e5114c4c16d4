"""Types for annotations: parameters and return values of holdfast's functions.

    from holdfast.typing import SelectionReport, Workflow

Programs rarely create these objects. Names that programs create, raise or catch are in `holdfast`.
"""

from __future__ import annotations

from holdfast.core.errors import ErrorRecord, Mistake
from holdfast.core.intent import ChildOptions, Startable, StartOptions
from holdfast.core.schedules import ScheduleOptions
from holdfast.engine.check import RunCheck
from holdfast.engine.controls import SelectedRun, Selection, SelectionReport, SyncSelection
from holdfast.engine.handle import SyncRunHandle
from holdfast.engine.info import (
    AuditInfo,
    DeadLetterInfo,
    EntryInfo,
    MessageInfo,
    ScheduleInfo,
    TopicInfo,
    TypeInfo,
    WaitInfo,
    WorkerInfo,
)
from holdfast.engine.lists import AsyncList, Filter
from holdfast.engine.namespaces import (
    DeadLetters,
    FlowInfo,
    Flows,
    RegisteredFlowInfo,
    Schedules,
    Topics,
    Types,
    Workers,
)
from holdfast.engine.sync import (
    Sync,
    SyncDeadLetters,
    SyncExport,
    SyncFlows,
    SyncSchedules,
    SyncTopics,
    SyncTypes,
    SyncWorkers,
)
from holdfast.engine.transfers import Export, ImportReport, LeftRun, RefusedRun
from holdfast.runner.children import Child
from holdfast.runner.context import RunView, StepKeywords
from holdfast.runner.definition import AsyncTask, Step, SyncWorkflow, Task, Workflow
from holdfast.runner.dry_run import Fit
from holdfast.runner.pipeline import Pipeline, PipelineDeclaration, PipelineOptions
from holdfast.runner.receiving import Message
from holdfast.runner.registry import StepDecorator, TaskDecorator, WorkflowDecorator
from holdfast.runner.step_info import StepInfo
from holdfast.runner.sync_context import SyncChild
from holdfast.telemetry.metrics import Metrics
from holdfast.worker.worker import Worker

__all__ = [
    "AsyncList",
    "AsyncTask",
    "AuditInfo",
    "Child",
    "ChildOptions",
    "DeadLetterInfo",
    "DeadLetters",
    "EntryInfo",
    "ErrorRecord",
    "Export",
    "Filter",
    "Fit",
    "FlowInfo",
    "Flows",
    "ImportReport",
    "LeftRun",
    "Message",
    "MessageInfo",
    "Metrics",
    "Mistake",
    "Pipeline",
    "PipelineDeclaration",
    "PipelineOptions",
    "RefusedRun",
    "RegisteredFlowInfo",
    "RunCheck",
    "RunView",
    "ScheduleInfo",
    "ScheduleOptions",
    "Schedules",
    "SelectedRun",
    "Selection",
    "SelectionReport",
    "StartOptions",
    "Startable",
    "Step",
    "StepDecorator",
    "StepInfo",
    "StepKeywords",
    "Sync",
    "SyncChild",
    "SyncDeadLetters",
    "SyncExport",
    "SyncFlows",
    "SyncRunHandle",
    "SyncSchedules",
    "SyncSelection",
    "SyncTopics",
    "SyncTypes",
    "SyncWorkers",
    "SyncWorkflow",
    "Task",
    "TaskDecorator",
    "TopicInfo",
    "Topics",
    "TypeInfo",
    "Types",
    "WaitInfo",
    "Worker",
    "WorkerInfo",
    "Workers",
    "Workflow",
    "WorkflowDecorator",
]
