"""Flow facts: the values that the recorded end of an operation has for a flow."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.codec import Codec
from holdfast.core.errors import ChildFailed, ErrorRecord, WaitTimeout
from holdfast.core.model import Entry, EntryState
from holdfast.core.received import Received, received_in
from holdfast.flows.progress import FlowDone, FlowFailed, FlowOutcome
from holdfast.flows.reopening import ChildPlace
from holdfast.runner.operation import Batch, ChildEnd, ChildGroup, Operation, Reception, Sleep

ANY_VALUE: Codec[object] = Codec(object)
"""The codec of every value in a flow: plain JSON."""


def member_place(entry: Entry) -> int:
    """Return the place of a child in its map."""
    return int(entry.location.rpartition("/")[2])


def place_of(location: str) -> ChildPlace:
    """Return the handle in the location of a child, and its index in a map."""
    handle, _, index = location.rpartition("#")[2].partition("/")
    return ChildPlace(int(handle), int(index) if index else None)


def failure_record(error: dict[str, Any]) -> ErrorRecord:
    """Return the error of a child from what the flow knows of it: the reverse of `fed_outcome`."""
    cause = error["cause"]
    # Only the record of a cancellation has no exception classes.
    types = () if error["kind"] == "cancelled" else (cause["type"],)
    return ErrorRecord(type=cause["type"], message=cause["message"], types=types)


def fed_outcome(operation: Operation, entry: Entry) -> FlowOutcome:
    """Return the end of an operation as its flow sees it."""
    if isinstance(operation, Sleep):
        return FlowDone("null")
    if isinstance(operation, Batch):
        return FlowDone(f"[{','.join(_value(operation, one) for one in received_in(entry))}]")
    if isinstance(operation, Reception):
        return _received(operation, entry)
    assert isinstance(operation, (ChildEnd, ChildGroup)), f"a flow does not wait for {operation!r}"
    return _child_end(entry)


def _received(operation: Reception, entry: Entry) -> FlowOutcome:
    try:
        operation.outcome(entry)
    except WaitTimeout as error:
        return FlowFailed("WaitTimeout", str(error), {"location": operation.location})
    (received,) = received_in(entry)
    return FlowDone(_value(operation, received))


def _value(operation: Reception, received: Received) -> str:
    """Return the JSON of a message or event."""
    if not operation.with_name:
        return received.payload
    return f"[{msgspec.json.encode(received.name).decode()},{received.payload}]"


def _child_end(entry: Entry) -> FlowOutcome:
    if entry.state is EntryState.DONE:
        return FlowDone(entry.result or "null")
    try:
        ChildEnd(entry.location, entry.ref or "", ANY_VALUE).outcome(entry)
    except ChildFailed as error:
        cause = {"type": error.cause.type, "message": error.cause.message}
        return FlowFailed("ChildFailed", str(error), {"run_id": error.run_id, "kind": error.kind, "cause": cause})
    raise AssertionError(f"the child at {entry.location} neither succeeded nor failed")
