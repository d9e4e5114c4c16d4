"""Requests: what a flow asks the outside for, the facts that answer them, how a slice ends, and how requests stand."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, Unreadable

ChildVerb = Literal["call", "start"]


class FlowRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, tag_field="request"):
    """The base of all requests. A request without an answer has the handle 0."""

    handle: int
    line: int


class CallChild(FlowRequest, frozen=True, kw_only=True):
    """Start a child run, and report its end. `is_awaited_kind` is the word that the program used.

    After a resume the payload is empty: the child was created with the checkpoint of that turn.
    """

    type: str
    payload: str
    options: dict[str, Any] = {}
    is_awaited_kind: ChildVerb = "call"


class MapChildren(FlowRequest, frozen=True, kw_only=True):
    """Start one child for each payload, at most `limit` at once, and report the end of each with `settle_member`.

    After a resume the payloads are empty, and `settled` are the indexes of the children that have been reported.
    """

    type: str
    payloads: tuple[str, ...]
    count: int
    limit: int | None = None
    options: dict[str, Any] = {}
    settled: tuple[int, ...] = ()


class SleepUntil(FlowRequest, frozen=True, kw_only=True):
    """Report `Done` with null at an instant. `is_fixed`: the program named the instant, not a duration."""

    deadline: Micros
    is_fixed: bool = False


class ReceiveMessage(FlowRequest, frozen=True, kw_only=True):
    """Report the payload of the next message, or `[name, payload]` with `with_name`. No names mean any message."""

    names: tuple[str, ...]
    deadline: Micros | None = None
    with_name: bool = False


class ReceiveBatch(FlowRequest, frozen=True, kw_only=True):
    """Report a list of up to `count` messages as soon as there is one, or an empty list at the deadline."""

    names: tuple[str, ...]
    count: int
    deadline: Micros | None = None
    with_name: bool = False


class WaitEvent(FlowRequest, frozen=True, kw_only=True):
    """Report the payload of the next event on a topic."""

    topic: str
    deadline: Micros | None = None


class SendMessage(FlowRequest, frozen=True, kw_only=True):
    """Send a message to a run by its id, or to the child of a handle."""

    run_id: str | None
    child: int | None
    name: str
    payload: str


class EmitEvent(FlowRequest, frozen=True, kw_only=True):
    """Publish an event."""

    topic: str
    payload: str


class SetValue(FlowRequest, frozen=True, kw_only=True):
    """Publish a named value of the run."""

    name: str
    value: str


class WriteLog(FlowRequest, frozen=True, kw_only=True):
    """Write a line to the log of the run."""

    text: str


class Withdraw(FlowRequest, frozen=True, kw_only=True):
    """End an operation that lost a race or was cancelled: withdraw its wait, or cancel its children.

    The machine has forgotten the operation, so a snapshot that has this request also has its `name` and its `children`.
    """

    name: str = ""
    children: tuple[str, ...] = ()


Request = (
    CallChild
    | MapChildren
    | SleepUntil
    | ReceiveMessage
    | ReceiveBatch
    | WaitEvent
    | SendMessage
    | EmitEvent
    | SetValue
    | WriteLog
    | Withdraw
)
"""Everything that a flow asks for."""

OpenRequest = CallChild | MapChildren | SleepUntil | ReceiveMessage | ReceiveBatch | WaitEvent
"""The requests that are answered with `settle`."""

# Progress


class Waiting(msgspec.Struct, frozen=True):
    """Every path waits for an open request."""


class Sliced(msgspec.Struct, frozen=True):
    """The budget is used up. The machine can continue at once."""


class FlowReturned(msgspec.Struct, frozen=True):
    """Main returned. `result` is JSON."""

    result: str


class FlowRaised(msgspec.Struct, frozen=True):
    """Main raised an error. Its message names line, column and source line."""

    error: ErrorRecord


class Continued(msgspec.Struct, frozen=True):
    """The program called `continue_as_new`. `payload` is the JSON object for the next generation."""

    payload: str


FlowProgress = Waiting | Sliced | FlowReturned | FlowRaised | Continued


# Facts


class FlowDone(msgspec.Struct, frozen=True):
    """An operation succeeded. `value` is JSON."""

    value: str


class FlowFailed(msgspec.Struct, frozen=True):
    """An operation failed.

    `type` is `ChildFailed`, `StepFailed`, `StepTimeout` or `WaitTimeout`. `fields` are JSON values that `except … as e`
    finds beside `type` and `message`, such as `kind` and `run_id` of a child.
    """

    type: str
    message: str
    fields: dict[str, Any] = {}


FlowOutcome = FlowDone | FlowFailed


class FlowMark(msgspec.Struct, frozen=True):
    """A place where a path of a flow waits."""

    line: int
    column: int
    function: str
    sentence: str
    """What it waits for, such as `waits for message decision`."""
    handle: int
    path: int = 0
    """The number of the path. That of main is 0."""


# The state of a flow run, as its snapshot stores it: that of the machine, and how its requests stand.
#
# The machine knows what the program waits for. Beside that a run must remember when the program asked for it, under
# which ids children were started, and which requests no checkpoint has carried out yet.


class AskedRequest(msgspec.Struct, frozen=True, array_like=True):
    """An open request: the last position before it, its instant, its deadline, and the origin of its children's ids.

    A deadline that `is_fixed` is a given instant, so a rewind does not move it.
    """

    location: str
    since: int
    at: Micros
    deadline: Micros | None = None
    origin: str = ""
    is_fixed: bool = False


class MemberStart(msgspec.Struct, frozen=True, tag=True, tag_field="request"):
    """One child of a map that is still to be started."""

    handle: int
    index: int
    payload: str
    is_parked: bool = False


class ChildCancels(msgspec.Struct, frozen=True, tag=True, tag_field="request"):
    """Children that are still to be cancelled, because their map was cancelled or lost a race."""

    ids: tuple[str, ...]


Unsent = Request | MemberStart | ChildCancels
"""A request that no checkpoint has carried out."""


class FlowState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a flow run after a turn.

    `machine` is the snapshot of the machine. `position` is the last one that an entry has, `turns` are the positions of
    the snapshots that are kept, oldest first. `children` are the ids of children by handle. `adopted` are the ids of
    children that a recovery kept, by location. `maps` are the requests for maps with children in `unsent`. `failed` are
    the positions of failures of children by handle and index, as long as the program can await them.
    """

    machine: msgspec.Raw
    position: int
    stamp: Micros
    turns: tuple[int, ...] = ()
    asked: dict[int, AskedRequest] = {}
    children: dict[int, str] = {}
    adopted: dict[str, str] = {}
    unsent: tuple[Unsent, ...] = ()
    maps: dict[int, MapChildren] = {}
    failed: dict[int, dict[int, int]] = {}

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


_decode = msgspec.json.Decoder(FlowState).decode


def decode_flow_state(text: str) -> FlowState:
    """Return the state in the text of a snapshot. Raises `Unreadable` if it is none."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Unreadable(f"the snapshot of this flow cannot be read: {error}") from error
