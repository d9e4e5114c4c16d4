"""Progress: how a slice of a flow ended, and the facts that are fed into one."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.errors import ErrorRecord


class Waiting(msgspec.Struct, frozen=True):
    """Every path waits for an open request."""


class Sliced(msgspec.Struct, frozen=True):
    """The budget is used up. The machine can continue at once."""


class FlowReturned(msgspec.Struct, frozen=True):
    """Main returned. `result` is JSON."""

    result: str


class FlowRaised(msgspec.Struct, frozen=True):
    """Main raised an error. Its message names line, column and source line."""

    error: ErrorRecord


class Continued(msgspec.Struct, frozen=True):
    """The program called `continue_as_new`. `payload` is the JSON object for the next generation."""

    payload: str


FlowProgress = Waiting | Sliced | FlowReturned | FlowRaised | Continued


class FlowDone(msgspec.Struct, frozen=True):
    """An operation succeeded. `value` is JSON."""

    value: str


class FlowFailed(msgspec.Struct, frozen=True):
    """An operation failed.

    `type` is `ChildFailed`, `StepFailed`, `StepTimeout` or `WaitTimeout`. `fields` are JSON values that `except … as e`
    finds beside `type` and `message`, such as `kind` and `run_id` of a child.
    """

    type: str
    message: str
    fields: dict[str, Any] = {}


FlowOutcome = FlowDone | FlowFailed


class FlowMark(msgspec.Struct, frozen=True):
    """A place where a path of a flow waits."""

    line: int
    column: int
    function: str
    sentence: str
    """What it waits for, such as `waits for message decision`."""
    handle: int
    path: int = 0
    """The number of the path. That of main is 0."""
