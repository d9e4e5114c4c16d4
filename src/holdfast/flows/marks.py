"""Marks: sentences about what the paths of a flow wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.clock import Micros, moment
from holdfast.flows.frames import NOT_WAITING
from holdfast.flows.operations import FIRST, JOIN, OPEN, PATH, RACE, OpenOperation
from holdfast.flows.progress import FlowMark
from holdfast.flows.requests import CallChild, MapChildren, ReceiveBatch, ReceiveMessage, SleepUntil, WaitEvent

if TYPE_CHECKING:
    from holdfast.flows.machine import Machine

SHOWN_BRANCHES = 5
"""Number of branches of a group that a sentence names."""


def marks_of(machine: Machine) -> list[FlowMark]:
    """Return a mark for each path that waits."""
    marks = []
    for path in machine.handles.paths.values():
        if path.wait == NOT_WAITING or not path.frames:
            continue
        function, line, column = machine.place(path.frames[-1])
        sentence = f"waits for {_subject(machine, machine.handles.table[path.wait])}"
        marks.append(FlowMark(line, column, function, sentence, handle=path.wait, path=path.number))
    return marks


def _subject(machine: Machine, operation: OpenOperation) -> str:
    if operation.kind == PATH:
        path = machine.handles.paths.get(operation.members[0])
        return f"{machine.program.functions[path.frames[0].function].name}()" if path and path.frames else "a helper"
    if operation.kind in (JOIN, RACE, FIRST):
        words = {JOIN: "all of", RACE: "one of", FIRST: "the first of"}
        return f"{words[operation.kind]} {_branches(machine, operation)}"
    return _requested(operation)


def _branches(machine: Machine, group: OpenOperation) -> str:
    table = machine.handles.table
    waiting = [place for place, number in enumerate(group.members) if table[number].state == OPEN]
    named = []
    for place in waiting[:SHOWN_BRANCHES]:
        branch = table[group.members[place]]
        is_group = branch.kind in (JOIN, RACE, FIRST)
        named.append(f"{group.key(place)} ({'a group' if is_group else _subject(machine, branch)})")
    more = f" and {len(waiting) - SHOWN_BRANCHES} more" if len(waiting) > SHOWN_BRANCHES else ""
    return ", ".join(named) + more


def _requested(operation: OpenOperation) -> str:
    request = operation.request
    match request:
        case CallChild():
            return f"child {request.type}"
        case MapChildren():
            return f"{operation.left} of {request.count} children {request.type}"
        case SleepUntil():
            return f"the time {_instant(request.deadline)}"
        case ReceiveMessage() | ReceiveBatch():
            what = f"message {' or '.join(request.names)}" if request.names else "any message"
            return what + _until(request.deadline)
        case WaitEvent():
            return f"event {request.topic}{_until(request.deadline)}"
        case None:
            return "an operation"


def _until(deadline: Micros | None) -> str:
    return "" if deadline is None else f" until {_instant(deadline)}"


def _instant(at: Micros) -> str:
    try:
        return moment(at).strftime("%Y-%m-%d %H:%M:%S UTC")
    except OverflowError:
        return "the end of time"
