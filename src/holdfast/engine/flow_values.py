"""Values of a flow as plain JSON: handles become words, and huge or circular values are cut."""

from __future__ import annotations

import math
from typing import Any, assert_never

from holdfast.flows.cursors import Cursor
from holdfast.flows.faults import ErrorValue
from holdfast.flows.machine import Machine
from holdfast.flows.operations import DONE, OPEN, Handle
from holdfast.flows.requests import (
    CallChild,
    MapChildren,
    OpenRequest,
    ReceiveBatch,
    ReceiveMessage,
    SleepUntil,
    WaitEvent,
)

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
