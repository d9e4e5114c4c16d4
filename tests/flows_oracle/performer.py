"""The performer: plays a flow on the machine with the stubs of the reference, and may save it in between."""

from __future__ import annotations

import json
from typing import Any

from holdfast.flows.compiler import compile_flow
from holdfast.flows.limits import FlowLimits
from holdfast.flows.machine import Machine
from holdfast.flows.program import Program
from holdfast.flows.requests import CallChild, FlowDone, FlowFailed, FlowRaised, FlowReturned, Sliced
from tests.flows_oracle.reference import stubbed


class Performance:
    """One execution of a program by the machine."""

    def __init__(self, source: str, limits: FlowLimits | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.message = ""
        """The message of the error that ended it."""
        self._limits = limits or FlowLimits(max_instructions=400_000)
        self._source = source.replace("#AS_DICT", "pass")
        self._program = Program.decode(compile_flow(self._source).encode())

    def run(self, arguments: dict[str, Any], *, budget: int = 5_000, saves: bool = False) -> tuple[str, Any]:
        """Return `("returned", value)` or `("raised", name of the error)`."""
        machine = Machine.begin(
            self._program, self._source, json.dumps(arguments), run_id="r", now=1, limits=self._limits
        )
        while True:
            progress = machine.run(budget)
            asked = [request for request in machine.take_requests() if isinstance(request, CallChild)]
            if isinstance(progress, FlowReturned):
                self._note(asked)
                return "returned", json.loads(progress.result)
            if isinstance(progress, FlowRaised):
                self._note(asked)
                self.message = progress.error.message
                return "raised", progress.error.type if "line" in progress.error.message else "no line"
            if saves:
                machine = Machine.resume(self._program, self._source, machine.snapshot(), limits=self._limits)
            for handle, outcome in self._note(asked):
                assert machine.settle(handle, outcome, 2) or saves
            assert isinstance(progress, Sliced) or asked, "the flow waits for nothing"

    def _note(self, asked: list[CallChild]) -> list[tuple[int, FlowDone | FlowFailed]]:
        answers: list[tuple[int, FlowDone | FlowFailed]] = []
        for request in asked:
            self.calls.append((request.type, request.payload))
            is_done, value = stubbed(len(self.calls), request.type, json.loads(request.payload))
            outcome = FlowDone(json.dumps(value)) if is_done else FlowFailed("ChildFailed", value)
            answers.append((request.handle, outcome))
        return answers
