"""Operations in progress: what the handles of a flow stand for, and how their ends wake paths."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.flows.faults import CANCELLED, ErrorValue
from holdfast.flows.requests import CallChild, MapChildren, OpenRequest

OPEN, DONE, FAILED = range(3)
PRIMITIVE, JOIN, RACE, FIRST, PATH, MAP = range(6)


class OpenOperation:
    """One operation: a request to the outside, a group of other operations, or a path."""

    __slots__ = (
        "error",
        "errors",
        "fails_fast",
        "groups",
        "keys",
        "kind",
        "left",
        "members",
        "number",
        "paths",
        "request",
        "results",
        "state",
        "value",
    )

    def __init__(self, number: int, kind: int, request: OpenRequest | None = None) -> None:
        self.number = number
        self.kind = kind
        self.request = request
        self.state = OPEN
        self.value: Any = None
        self.error: ErrorValue | None = None
        self.paths: list[int] = []
        """The paths that await it."""
        self.groups: list[int] = []
        """The groups that it is a branch of."""
        self.keys: list[str] | None = None
        """The keys of the branches of a group; None if they are a list."""
        self.members: list[int] = []
        """The handles of the branches of a group; of a path, its number."""
        self.left = 0
        """Number of branches or children that have not ended."""
        self.fails_fast = False
        self.results: dict[str, Any] = {}
        """The results of the children of a map, by index."""
        self.errors: dict[str, Any] = {}
        """The errors of the children of a map, by index."""

    @property
    def is_child(self) -> bool:
        """True if it is a child run, or several."""
        return isinstance(self.request, CallChild | MapChildren)

    def saved_request(self) -> OpenRequest:
        """Return the request as of now: that of a map names the children which have been reported."""
        assert self.request is not None
        if isinstance(self.request, MapChildren) and (self.results or self.errors):
            settled = tuple(sorted(int(key) for key in (*self.results, *self.errors)))
            return replace(self.request, settled=settled)
        return self.request

    def key(self, place: int) -> str | int:
        """Return the key of a branch: that of the dict, or the index in the list."""
        return place if self.keys is None else self.keys[place]


def copy_of(error: ErrorValue) -> ErrorValue:
    """Return an error as if it were raised for the first time."""
    return ErrorValue(error.type, error.message, error.fields)


def withdrawn(operation: OpenOperation) -> ErrorValue:
    """Return the error of an operation that was cancelled or lost a race."""
    if operation.is_child:
        message = "the child was cancelled by its flow"
        cause = {"type": CANCELLED, "message": message}
        return ErrorValue("ChildFailed", message, {"kind": "cancelled", "cause": cause})
    return ErrorValue("Error", "the operation was cancelled", {"code": "cancelled"})


def is_withdrawn(operation: OpenOperation) -> bool:
    """True if an operation ended because it was cancelled or lost a race, and not by itself."""
    error, end = operation.error, withdrawn(operation)
    return error is not None and (error.type, error.message, error.fields) == (end.type, end.message, end.fields)


def join_failed(results: dict[str, Any], errors: dict[str, Any]) -> ErrorValue:
    """Return the error of a join or map some of whose branches failed."""
    total = len(results) + len(errors)
    message = f"{len(errors)} of {total} branches failed: {_listed(errors)}"
    return ErrorValue("JoinFailed", message, {"results": results, "errors": errors})


def race_failed(errors: dict[str, Any]) -> ErrorValue:
    """Return the error of a race whose branches have all failed."""
    return ErrorValue("RaceFailed", f"all {len(errors)} branches failed: {_listed(errors)}", {"errors": errors})


def _listed(errors: dict[str, Any]) -> str:
    shown = [f"{key}: {error['type']}: {str(error['message'])[:200]}" for key, error in list(errors.items())[:5]]
    return "; ".join(shown) + (f"; and {len(errors) - 5} more" if len(errors) > 5 else "")
