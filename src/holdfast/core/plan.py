"""The plan of a pipeline: how far a run has got in its steps, found in its history and its waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast.core.entries import undone
from holdfast.core.model import Entry, EntryState, Run, Value, Wait
from holdfast.core.states import RunState

PlannedState = Literal["done", "undone", "current", "failed", "cancelled", "to_come", "skipped"]
"""State of a step. After the end of a run, steps that it did not reach are `skipped`."""


class PlannedStep(Value, frozen=True, kw_only=True):
    """A step of a plan and its state in one run."""

    name: str
    state: PlannedState


class PlanProgress(Value, frozen=True, kw_only=True):
    """The steps of a plan with their states.

    `cursor` is the step that the run executes, waits in or failed at; None after the last. A step that takes `ctx` has
    no entry of its own. It is done when a later step has one.
    """

    cursor: str | None
    steps: tuple[PlannedStep, ...]

    @property
    def number(self) -> int | None:
        """The place of the cursor, counted from 1."""
        return None if self.cursor is None else 1 + [step.name for step in self.steps].index(self.cursor)


def progress(plan: Sequence[str], run: Run, entries: Sequence[Entry], waits: Sequence[Wait]) -> PlanProgress:
    """Return how far a run has got in its plan."""
    passed = _passed(plan, run, entries, waits)
    was_undone = {_step_of(location) for location in undone(entries)}
    steps = []
    for number, name in enumerate(plan):
        state: PlannedState = "undone" if name in was_undone else "done"
        if number >= passed:
            state = _at_cursor(run) if number == passed else ("skipped" if run.state.is_end else "to_come")
        steps.append(PlannedStep(name=name, state=state))
    return PlanProgress(cursor=plan[passed] if passed < len(plan) else None, steps=tuple(steps))


def _passed(plan: Sequence[str], run: Run, entries: Sequence[Entry], waits: Sequence[Wait]) -> int:
    """Return the number of steps that are done: those before the last one that has begun, and that one if it ended."""
    if run.state is RunState.SUCCEEDED:
        return len(plan)
    begun = {_step_of(location) for location in (*(e.location for e in entries), *(w.location for w in waits))}
    last = max((number for number, name in enumerate(plan) if name in begun), default=None)
    if last is None:
        return 0
    is_done = any(entry.location == plan[last] and entry.state is EntryState.DONE for entry in entries)
    return last + 1 if is_done else last


def _at_cursor(run: Run) -> PlannedState:
    end = run.rollback or run.state
    if end is RunState.FAILED:
        return "failed"
    return "cancelled" if end is RunState.CANCELLED else "current"


def _step_of(location: str) -> str:
    return location.partition("/")[0]
