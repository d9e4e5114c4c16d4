"""Flows: workflows as data. This package is the pure core of their language.

It compiles the text of a flow into a `Program`, and executes a program on a `Machine` whose state is one JSON document.
It does no I/O and knows no store. Every package above may import it. Start with `grammar` (what is allowed), then
`compile` (text to program) and `machine` (program to requests).
"""

from holdfast.core.errors import FlowRefused, Mistake
from holdfast.flows.compiler import compile_flow
from holdfast.flows.limits import DEFAULT_FLOW_LIMITS, FlowLimits
from holdfast.flows.machine import Machine
from holdfast.flows.play import Played, PlayedArrival, StubError, StubSequence, play
from holdfast.flows.program import FlowParameter, Program
from holdfast.flows.progress import Continued, Sliced, Waiting
from holdfast.flows.progress import FlowDone as Done
from holdfast.flows.progress import FlowFailed as Failed
from holdfast.flows.progress import FlowMark as Mark
from holdfast.flows.progress import FlowOutcome as Outcome
from holdfast.flows.progress import FlowProgress as Progress
from holdfast.flows.progress import FlowRaised as Raised
from holdfast.flows.progress import FlowReturned as Returned
from holdfast.flows.requests import (
    CallChild,
    EmitEvent,
    MapChildren,
    OpenRequest,
    ReceiveBatch,
    ReceiveMessage,
    Request,
    SendMessage,
    SetValue,
    SleepUntil,
    WaitEvent,
    Withdraw,
    WriteLog,
)

__all__ = [
    "DEFAULT_FLOW_LIMITS",
    "CallChild",
    "Continued",
    "Done",
    "EmitEvent",
    "Failed",
    "FlowLimits",
    "FlowParameter",
    "FlowRefused",
    "Machine",
    "MapChildren",
    "Mark",
    "Mistake",
    "OpenRequest",
    "Outcome",
    "Played",
    "PlayedArrival",
    "Program",
    "Progress",
    "Raised",
    "ReceiveBatch",
    "ReceiveMessage",
    "Request",
    "Returned",
    "SendMessage",
    "SetValue",
    "SleepUntil",
    "Sliced",
    "StubError",
    "StubSequence",
    "WaitEvent",
    "Waiting",
    "Withdraw",
    "WriteLog",
    "compile_flow",
    "play",
]
