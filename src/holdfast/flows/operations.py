"""Where a run of a flow stands: its paths with their frames, and the operations in progress that its handles stand for.

A recovery opens the operations of failed children again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.flows.faults import CANCELLED, ErrorValue
from holdfast.flows.requests import CallChild, MapChildren, OpenRequest

MAIN_PATH = 0
NOT_WAITING = -1
NO_HANDLE = 0
"""The handle of an operation that has nothing to wait for. Awaiting it gives None at once."""
OPEN, DONE, FAILED = range(3)
PRIMITIVE, JOIN, RACE, FIRST, PATH, MAP = range(6)
GROUPS = (JOIN, RACE, FIRST)
UNSET_SLOT: Any = object()
"""The value of a variable that has none."""


class Frame:
    """One call of a function: its program counter, its variables and its operand stack."""

    __slots__ = ("function", "pc", "slots", "stack")

    def __init__(self, function: int, slots: list[Any], pc: int = 0, stack: list[Any] | None = None) -> None:
        self.function = function
        self.pc = pc
        self.slots = slots
        self.stack: list[Any] = [] if stack is None else stack


class Path:
    """A line of execution: main, or an async helper that was started without an await."""

    __slots__ = ("error", "frames", "handle", "number", "wait")

    def __init__(self, number: int, handle: int, frames: list[Frame]) -> None:
        self.number = number
        self.handle = handle
        self.frames = frames
        self.wait = NOT_WAITING
        """The handle that it waits for."""
        self.error: ErrorValue | None = None
        """The error that it raises when it continues."""


class Handle:
    """The value that stands for an operation in progress, by its number. It is opaque to the program."""

    __slots__ = ("number",)
    __hash__ = None  # type: ignore[assignment]  # a key of a dict is a string

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.number == self.number

    def __repr__(self) -> str:
        return f"<handle {self.number}>"


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


# Recovery

Table = dict[int, OpenOperation]


class ChildPlace(NamedTuple):
    """A child of a flow: its handle, and its index as a member of a map."""

    handle: int
    member: int | None = None


class RaisedFailures:
    """The failed children behind the errors that awaits have raised since the last snapshot.

    `errors` has what `except … as e` shows of each.
    """

    def __init__(self) -> None:
        self.errors: dict[ChildPlace, dict[str, Any]] = {}
        self._known: set[int] = set()
        self._first_number = 0

    def add(self, operation: OpenOperation, table: Table) -> None:
        """Note that an await raised the error of an operation."""
        self.errors.update(self._behind(operation, table))

    def clear(self, next_number: int) -> None:
        """Forget them, because there is a new snapshot. Later operations have this number or a greater one."""
        self.errors.clear()
        self._known.clear()
        self._first_number = next_number

    def _behind(self, operation: OpenOperation, table: Table) -> Iterator[tuple[ChildPlace, dict[str, Any]]]:
        """Yield the failed children behind an operation, through groups.

        It visits each failed operation once between two snapshots, so that a program that awaits the same failures
        again and again costs no more. It needs no recursion.
        """
        pending = [operation]
        while pending:
            one = pending.pop()
            if one.state != FAILED or one.error is None or one.number in self._known:
                continue
            self._known.add(one.number)
            # A group waits again when one of its branches does. It cannot if the snapshot lost its branches.
            if one.kind in GROUPS and (one.number >= self._first_number or has_all_branches(one, table)):
                pending += [table[number] for number in one.members if number in table]
            elif one.kind == MAP:
                for key, error in one.error.fields.get("errors", {}).items():
                    yield ChildPlace(one.number, int(key)), error
            elif one.kind == PRIMITIVE and one.is_child:
                yield ChildPlace(one.number), one.error.as_dict()


def has_all_branches(group: OpenOperation, table: Table) -> bool:
    """True if the decision of a group cancelled no branch."""
    return all(number in table and not is_withdrawn(table[number]) for number in group.members)


def reopen(table: Table, places: Iterable[ChildPlace]) -> int:
    """Open failed children again, and the groups that failed with them. Return the number of operations opened.

    A child that is open stays as it is.
    """
    changed: dict[int, None] = {}
    opened = 0
    for place in places:
        operation = table.get(place.handle)
        if operation is None:
            continue
        if operation.state == FAILED:
            opened += 1
            _open(operation)
            changed[operation.number] = None
        if operation.kind == MAP and operation.errors.pop(str(place.member), None) is not None:
            operation.left += 1
    return opened + _reopen_groups(table, changed)


def _open(operation: OpenOperation) -> None:
    error, operation.error = operation.error, None
    operation.state = OPEN
    if operation.kind == MAP and error is not None:
        operation.results = dict(error.fields.get("results", {}))
        operation.errors = dict(error.fields.get("errors", {}))


def _reopen_groups(table: Table, changed: dict[int, None]) -> int:
    """Let groups wait for branches that are open again. A group can be a branch of a later one."""
    opened = 0
    for group in list(table.values()):
        if group.kind not in GROUPS or changed.keys().isdisjoint(group.members):
            continue
        if group.state == FAILED and has_all_branches(group, table):
            opened += 1
            _open(group)
            changed[group.number] = None
        if group.state == OPEN:
            for number in group.members:
                if number in changed:
                    table[number].groups.append(group.number)
            group.left = sum(table[number].state == OPEN for number in group.members)
    return opened
