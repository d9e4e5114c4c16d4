"""The choice of the turn for a leased run: that of a task, of a flow, or of a workflow."""

from __future__ import annotations

from holdfast.core.model import Lease
from holdfast.runner.definition import Definition
from holdfast.runner.flow_turn import FlowTurn
from holdfast.runner.flow_type import FlowType
from holdfast.runner.run_turn import RunTurn
from holdfast.runner.task_definition import Task
from holdfast.runner.task_turn import TaskTurn
from holdfast.runner.turn import Turn


def turn_of(lease: Lease, definition: Definition | FlowType, *, has_database: bool, seen: int | None = None) -> RunTurn:
    """Return the turn that drives a leased run."""
    if isinstance(definition, FlowType):
        return FlowTurn(lease, definition, seen=seen, has_database=has_database)
    if isinstance(definition, Task) and TaskTurn.suits(definition, lease.entries):
        return TaskTurn(lease, definition, seen=seen, has_database=has_database)
    return Turn(lease, definition, seen=seen, has_database=has_database)
