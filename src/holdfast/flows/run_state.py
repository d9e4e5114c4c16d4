"""The state of a flow run as its snapshot stores it: the state of the machine, and how its requests stand.

The machine knows what the program waits for. Beside that a run must remember when the program asked for it, under
which ids children were started, and which requests no checkpoint has carried out yet.
"""

from __future__ import annotations

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.errors import Unreadable
from holdfast.flows.requests import MapChildren, Request


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
