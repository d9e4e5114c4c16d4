"""The performer: plays a flow on the machine with the stubs of the reference, and may save it in between."""

from __future__ import annotations

import json
from typing import Any

from holdfast.flows import CallChild, Done, Failed, FlowLimits, Machine, Program, Raised, Returned, Sliced, compile_flow
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
            if isinstance(progress, Returned):
                self._note(asked)
                return "returned", json.loads(progress.result)
            if isinstance(progress, Raised):
                self._note(asked)
                self.message = progress.error.message
                return "raised", progress.error.type if "line" in progress.error.message else "no line"
            if saves:
                machine = Machine.resume(self._program, self._source, machine.snapshot(), limits=self._limits)
            for handle, outcome in self._note(asked):
                assert machine.settle(handle, outcome, 2) or saves
            assert isinstance(progress, Sliced) or asked, "the flow waits for nothing"

    def _note(self, asked: list[CallChild]) -> list[tuple[int, Done | Failed]]:
        answers: list[tuple[int, Done | Failed]] = []
        for request in asked:
            self.calls.append((request.type, request.payload))
            is_done, value = stubbed(len(self.calls), request.type, json.loads(request.payload))
            outcome = Done(json.dumps(value)) if is_done else Failed("ChildFailed", value)
            answers.append((request.handle, outcome))
        return answers
