"""The view of a flow run: its program, the lines where it waits, and its variables. It only reads.

A snapshot or a program that cannot be read is a sentence in the view, and never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, Micros, moment
from holdfast.core.entries import FLOW_LOCATION, TURN_PREFIX
from holdfast.core.errors import ErrorRecord, InvalidRequest, RunNotFound, Unreadable
from holdfast.core.flow_definitions import FlowDefinition, definition_at
from holdfast.core.flow_revision import FlowPoint, flow_in, is_flow, point_at
from holdfast.core.model import Entry, Run
from holdfast.core.ports import Reader
from holdfast.core.questions import ListFlows
from holdfast.core.states import RunState
from holdfast.engine.lists import listed
from holdfast.flows.cursors import Cursor
from holdfast.flows.faults import ErrorValue
from holdfast.flows.machine import Machine
from holdfast.flows.operations import DONE, OPEN, PATH, Handle
from holdfast.flows.program import Program
from holdfast.flows.requests import (
    CallChild,
    FlowMark,
    FlowState,
    MapChildren,
    OpenRequest,
    ReceiveBatch,
    ReceiveMessage,
    SleepUntil,
    WaitEvent,
    decode_flow_state,
)

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


class LoadedSnapshot(NamedTuple):
    """A snapshot that was read: what it stores, and the machine that continues from it."""

    state: FlowState
    machine: Machine

    def encoded(self) -> str:
        """Return the text of the snapshot with the machine as it is now."""
        return replace(self.state, machine=msgspec.Raw(self.machine.snapshot().encode())).encode()


async def definition_of(store: Reader, run: Run, version: str | None) -> FlowDefinition:
    """Return the definition that a run executes: its version once it has begun, else the one for its creation.

    Raises `Unreadable` if the store does not have it.
    """
    if version is None:
        found = definition_at(run.created_at, [one async for one in listed(store, ListFlows(type=run.type))])
        if found is None:
            raise Unreadable(f"the store has no definition of the flow {run.type!r}")
        version = found.version
    known = await store.catalog(ListFlows(type=run.type, version=version, with_texts=True, limit=1))
    if not known:
        raise Unreadable(f"the store has no version {version[:12]} of the flow {run.type!r}")
    return known[0]


def loaded(definition: FlowDefinition, snapshot: Entry) -> LoadedSnapshot:
    """Return a snapshot with its machine. Raises `Unreadable` if the snapshot or the program cannot be read."""
    program = Program.decode(definition.program)
    state = decode_flow_state(snapshot.result or "")
    return LoadedSnapshot(state, Machine.resume(program, definition.source, bytes(state.machine).decode()))


def move_deadlines(found: LoadedSnapshot, snapshot: Entry) -> None:
    """Set the deadlines of a machine to those that count for the run: a rewind moves them."""
    put_off = 0
    if snapshot.retry_at is not None:
        put_off = max(0, snapshot.retry_at - (snapshot.finished_at or 0))
    for handle, asked in found.state.asked.items():
        operation = found.machine.handles.table.get(handle)
        request = None if operation is None else operation.request
        if operation is None or operation.state != OPEN or asked.deadline is None:
            continue
        if request is not None and not isinstance(request, CallChild | MapChildren):
            deadline: Micros = asked.deadline + (0 if asked.is_fixed else put_off)
            operation.request = replace(request, deadline=deadline)


DEPTH_LIMIT = 20
ITEM_LIMIT = 2_000
"""Maximum number of items of all values together."""
TEXT_LIMIT = 2_000
CUT = "…"


class ShownValues:
    """Turns the values of one machine into JSON. What exceeds a limit is cut, and `…` stands in its place."""

    def __init__(self, machine: Machine) -> None:
        self._table = machine.handles.table
        self._left = ITEM_LIMIT

    def shown(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of a call as JSON values."""
        return {name: self._value(value, 0) for name, value in variables.items()}

    def _value(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > DEPTH_LIMIT:
            return CUT
        match value:
            case str():
                return value if len(value) <= TEXT_LIMIT else value[:TEXT_LIMIT] + CUT
            case list():
                items = [self._value(one, depth + 1) for one in value[: self._left + 1]]
                return items if len(items) == len(value) else [*items, CUT]
            case dict():
                shown = list(value.items())[: self._left + 1]
                more = {} if len(shown) == len(value) else {CUT: CUT}
                return {key: self._value(one, depth + 1) for key, one in shown} | more
            case Handle():
                return self._handle(value)
            case ErrorValue():
                return self._value(value.as_dict(), depth)
            case Cursor():
                return CUT
            case float() if not math.isfinite(value):
                return str(value)  # JSON has no such number
            case _:
                return value

    def _handle(self, handle: Handle) -> str:
        operation = self._table.get(handle.number)
        if operation is None:
            return "<handle>"
        state = "" if operation.state == OPEN else ", done" if operation.state == DONE else ", failed"
        return f"<{_subject(operation.request)}{state}>"


def _subject(request: OpenRequest | None) -> str:
    match request:
        case None:
            return "handle"
        case CallChild():
            return f"child {request.type}"
        case MapChildren():
            return f"children {request.type}"
        case SleepUntil():
            return "sleep"
        case ReceiveMessage() | ReceiveBatch():
            return f"receive {' or '.join(request.names)}".rstrip()
        case WaitEvent():
            return f"event {request.topic}"
        case _:
            assert_never(request)


class ForkPoint(NamedTuple):
    """Where a fork begins, and what it changes there: JSON texts by location, or by variable of a flow."""

    location: str
    patch: Mapping[str, str]


async def fork_point(store: Reader, run_id: str, wanted: ForkPoint) -> ForkPoint:
    """Return the point as a store understands it. Only that of a flow changes: it gets a patched snapshot."""
    details = await store.get(run_id)
    if details is None:
        raise RunNotFound(f"there is no run {run_id}")
    return await patched_point(store, details.run, await store.history(run_id), wanted)


async def patched_point(store: Reader, run: Run, entries: Sequence[Entry], wanted: ForkPoint) -> ForkPoint:
    """Return the point as a store understands it, given the run and its history."""
    if not wanted.patch or not is_flow(entries):
        return wanted
    point = point_at(entries, wanted.location)
    if point.snapshot is None:
        names = ", ".join(sorted(wanted.patch))
        raise InvalidRequest(
            f"at {wanted.location!r} the flow is at its beginning, so there is no variable {names} to set; "
            "start a new run with another payload instead"
        )
    definition = await definition_of(store, run, point.snapshot.ref)
    snapshot = loaded(definition, point.snapshot)
    snapshot.machine.edit_variables(dict(wanted.patch))
    return ForkPoint(_kept_at(entries, point, wanted.location), {FLOW_LOCATION: snapshot.encoded()})


def _kept_at(entries: Sequence[Entry], point: FlowPoint, location: str) -> str:
    """Return the location of the kept snapshot, which means the same point even if the run moves on meanwhile."""
    assert point.snapshot is not None
    kept = f"{TURN_PREFIX}{point.snapshot.attempts}"
    is_kept = any(entry.location == kept and entry.since == point.since for entry in entries)
    return kept if is_kept else location
