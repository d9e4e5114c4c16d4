"""The view of a flow run: its program, the lines where it waits, and its variables. It only reads.

A snapshot or a program that cannot be read is a sentence in the view, and never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, Micros, moment
from holdfast.core.errors import ErrorRecord, Unreadable
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.flow_revision import flow_in
from holdfast.core.model import Entry, Run
from holdfast.core.ports import Reader
from holdfast.core.states import RunState
from holdfast.engine.flow_snapshot import LoadedSnapshot, definition_of, loaded, move_deadlines
from holdfast.engine.flow_values import ShownValues
from holdfast.flows.machine import Machine
from holdfast.flows.operations import OPEN, PATH
from holdfast.flows.requests import FlowMark

_PLACE = re.compile(r"^  line (\d+), column (\d+), in (\w+)$", re.MULTILINE)
_LINE_LIMIT = 200


class FlowPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the program of a flow: a line and column, counted from 1, and the function around it."""

    line: int
    column: int
    function: str


class FlowFrame(FlowPlace, frozen=True, kw_only=True):
    """A call that has not returned: where it stands, and its variables as JSON values."""

    variables: dict[str, Any]


class FlowWait(FlowPlace, frozen=True, kw_only=True):
    """A path of a flow that waits, and where. `frames` are its calls, innermost first."""

    sentence: str
    """What it waits for, such as `waits for message decision`."""
    since: datetime | None
    """When the program asked for it. None if it waits for a helper of its own."""
    frames: tuple[FlowFrame, ...]


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow run as people see it.

    `version` and `source` are those of the program that it executes; None if the store does not have it. `saved_at` is
    the time of its newest snapshot, and `waits` is where it stood then. A run that has ended waits for nothing.
    """

    type: str
    version: str | None
    source: str | None
    note: str
    """The progress of the flow in a few words."""
    saved_at: datetime | None = None
    waits: tuple[FlowWait, ...] = ()
    failed_at: FlowPlace | None = None
    """Where the program raised the error that ended it."""
    variables: dict[str, Any] = {}
    """The variables of the innermost call of main's path in the newest snapshot."""
    unreadable: str | None = None
    """The reason why the program or the snapshot cannot be read, if so."""

    def line(self, number: int) -> str:
        """Return a line of the program, without the spaces around it."""
        lines = (self.source or "").split("\n")
        return lines[number - 1].strip()[:_LINE_LIMIT] if 0 < number <= len(lines) else ""


async def flow_view(store: Reader, run: Run, entries: Iterable[Entry]) -> FlowView:
    """Return the view of a flow run with this history."""
    flow = flow_in(entries)
    version = None if flow is None else flow.ref
    try:
        definition = await definition_of(store, run, version)
    except Unreadable as error:
        return FlowView(type=run.type, version=version, source=None, note=_note(run, flow), unreadable=str(error))
    return view_of(run, flow, definition)


def view_of(run: Run, flow: Entry | None, definition: FlowDefinition) -> FlowView:
    """Return the view of a run, given its newest snapshot and its definition."""
    base = FlowView(
        type=run.type,
        version=definition.version,
        source=definition.source,
        note=_note(run, flow),
        failed_at=_failed_at(run.error) if run.state is RunState.FAILED else None,
    )
    if flow is None or flow.result is None:
        return base
    try:
        found = loaded(definition, flow)
    except Unreadable as error:
        return msgspec.structs.replace(base, unreadable=str(error))
    move_deadlines(found, flow)
    values = ShownValues(found.machine)
    return msgspec.structs.replace(
        base,
        saved_at=_moment(flow.finished_at),
        waits=() if run.state.is_end else tuple(_wait(found, mark, values) for mark in found.machine.marks()),
        variables=values.shown(found.machine.variables()),
    )


def _note(run: Run, flow: Entry | None) -> str:
    if run.state.is_end:
        return f"it has {run.state.value}" if run.state is not RunState.CANCELLED else "it was cancelled"
    if flow is None or flow.result is None:
        return "it has not begun"
    return f"saved after turn {flow.attempts}"


def _failed_at(error: ErrorRecord | None) -> FlowPlace | None:
    """Return the innermost place in the traceback of a flow."""
    places = _PLACE.findall("" if error is None else error.traceback)
    if not places:
        return None
    line, column, function = places[-1]
    return FlowPlace(line=int(line), column=int(column), function=function)


def _wait(found: LoadedSnapshot, mark: FlowMark, values: ShownValues) -> FlowWait:
    machine = found.machine
    frames = machine.handles.paths[mark.path].frames
    child = found.state.children.get(mark.handle)
    return FlowWait(
        line=mark.line,
        column=mark.column,
        function=mark.function,
        sentence=mark.sentence if child is None else f"{mark.sentence}, run {child}",
        since=_moment(_asked_at(found, mark.handle)),
        frames=tuple(_frame(machine, frame, values) for frame in reversed(frames)),
    )


def _frame(machine: Machine, frame: Any, values: ShownValues) -> FlowFrame:
    function, line, column = machine.place(frame)
    shown = values.shown(machine.variables_of(frame))
    return FlowFrame(line=line, column=column, function=function, variables=shown)


def _asked_at(found: LoadedSnapshot, handle: int) -> Micros | None:
    """Return when the program asked for an operation; of a group, for its first branch that is open."""
    pending, instants, seen = [handle], [], set[int]()
    while pending:
        number = pending.pop()
        operation = found.machine.handles.table.get(number)
        if number in seen or operation is None or operation.state != OPEN:
            continue
        seen.add(number)
        if number in found.state.asked:
            instants.append(found.state.asked[number].at)
        elif operation.kind != PATH:
            pending += operation.members
    return min(instants, default=None)


def _moment(at: Micros | None) -> datetime | None:
    return None if at is None or not FIRST_INSTANT <= at <= LAST_INSTANT else moment(at)
