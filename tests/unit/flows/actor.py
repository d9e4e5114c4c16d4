"""Plays flows in tests: with stubs, or one fact after the other."""

from __future__ import annotations

import json
from typing import Any

from holdfast.flows.compiler import compile_flow
from holdfast.flows.limits import FlowLimits
from holdfast.flows.machine import Machine
from holdfast.flows.requests import (
    FlowDone,
    FlowFailed,
    FlowProgress,
    FlowRaised,
    FlowReturned,
    Request,
    Sliced,
    Waiting,
)

START = 1_700_000_000_000_000
ROOMY = FlowLimits(max_instructions=3_000_000)


def body(text: str, parameters: str = "") -> str:
    """Return a flow whose main has these lines."""
    lines = "\n".join(f"    {line}" for line in text.strip("\n").split("\n"))
    return f"async def main({parameters}):\n{lines}\n"


class Actor:
    """One run of a flow, which is saved and resumed before each slice."""

    def __init__(self, source: str, limits: FlowLimits = ROOMY, **arguments: Any) -> None:
        self.source = source
        self.limits = limits
        self.program = compile_flow(source)
        self.machine = Machine.begin(
            self.program, source, json.dumps(arguments), run_id="run-1", now=START, limits=limits
        )
        self.now = START
        self.asked: list[Request] = []

    def run(self) -> FlowProgress:
        """Run until the flow waits or ends."""
        while True:
            progress = self.machine.run(self.limits.instructions_per_slice)
            self.asked += self.machine.take_requests()
            if not isinstance(progress, Sliced):
                if isinstance(progress, Waiting):
                    snapshot = self.machine.snapshot()
                    self.machine = Machine.resume(self.program, self.source, snapshot, limits=self.limits)
                return progress

    def done(self, handle: int, value: Any = None, *, after: int = 1) -> FlowProgress:
        """Let an operation succeed, and run."""
        self.now += after
        assert self.machine.settle(handle, FlowDone(json.dumps(value)), self.now)
        return self.run()

    def failed(self, handle: int, type: str, message: str = "no", **fields: Any) -> FlowProgress:
        """Let an operation fail, and run."""
        assert self.machine.settle(handle, FlowFailed(type, message, fields), self.now)
        return self.run()


def result_of(source: str, limits: FlowLimits = ROOMY, **arguments: Any) -> Any:
    """Return the result of a flow that never waits."""
    progress = Actor(source, limits, **arguments).run()
    assert isinstance(progress, FlowReturned), progress
    return json.loads(progress.result)


def error_of(source: str, limits: FlowLimits = ROOMY, **arguments: Any) -> tuple[str, str]:
    """Return type and message of the error of a flow that never waits."""
    progress = Actor(source, limits, **arguments).run()
    assert isinstance(progress, FlowRaised), progress
    return progress.error.type, progress.error.message
