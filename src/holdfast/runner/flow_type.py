"""The type of a flow in a worker, and the code that its runs execute."""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Run
from holdfast.core.rules import CRASH_LIMIT
from holdfast.flows.program import Program


class FlowCode(msgspec.Struct, frozen=True):
    """A version of a flow, ready to be executed."""

    version: str
    program: Program
    source: str


class FlowFinder(Protocol):
    """Finds the code of a run. It does no I/O: code that is not in memory is loaded meanwhile."""

    def code_of(self, run: Run, version: str | None) -> FlowCode | None:
        """Return the code of a run, by its version once it has begun. None while it is being loaded.

        Raises `Unreadable` if the store does not have it, or if this worker cannot execute it.
        """
        ...


class FlowType:
    """A type whose runs are flows. It takes the place of a `Definition`."""

    is_task = False
    reason: ErrorRecord | None = None
    crash_limit = CRASH_LIMIT

    def __init__(self, type: str, finder: FlowFinder, description: str = "") -> None:
        self.type = type
        self.description = description
        self.finder = finder
        self.surviving_lines: set[str] = set()

    def __repr__(self) -> str:
        return f"<flow {self.type}>"
