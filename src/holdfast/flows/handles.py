"""The handles of a run: the table of its operations, and what happens when one of them ends."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.flows.faults import CANCELLED, ErrorValue, FlowFault, exceeded, fault
from holdfast.flows.limits import FlowLimits
from holdfast.flows.meter import from_json, type_name
from holdfast.flows.operations import (
    DONE,
    FAILED,
    FIRST,
    GROUPS,
    JOIN,
    MAP,
    NO_HANDLE,
    NOT_WAITING,
    OPEN,
    PATH,
    PRIMITIVE,
    Handle,
    OpenOperation,
    Path,
    RaisedFailures,
    copy_of,
    join_failed,
    race_failed,
    withdrawn,
)
from holdfast.flows.requests import CallChild, FlowDone, FlowOutcome, MapChildren, OpenRequest, Request, Withdraw

if TYPE_CHECKING:
    from holdfast.flows.snapshot import HeapWriter


class Handles:
    """The operations of one run by number, its paths, and the paths that can continue."""

    def __init__(self, limits: FlowLimits) -> None:
        self.limits = limits
        self.table: dict[int, OpenOperation] = {}
        self.paths: dict[int, Path] = {}
        self.ready: deque[int] = deque()
        self.requests: list[Request] = []
        self.raised = RaisedFailures()
        self.next_number = 1
        self.next_path = 1
        self.open_count = 0

    def open(self, kind: int, request: OpenRequest | None = None) -> OpenOperation:
        """Add an operation. A request gets its number with `ask`."""
        if self.open_count >= self.limits.open_handles:
            raise exceeded("open_handles", self.limits.open_handles, "too many operations are open")
        operation = OpenOperation(self.next_number, kind, request)
        self.table[operation.number] = operation
        self.next_number += 1
        self.open_count += 1
        return operation

    def ask(self, request: OpenRequest) -> Handle:
        """Open an operation of the outside, whose request has the next number."""
        operation = self.open(MAP if isinstance(request, MapChildren) else PRIMITIVE, _without_payload(request))
        assert request.handle == operation.number
        if isinstance(request, MapChildren):
            operation.left = request.count
        self.requests.append(request)
        return Handle(operation.number)

    def group(self, kind: int, branches: Any, *, fails_fast: bool = False) -> Handle:
        """Open a join, race or first_settled of handles in a dict or list."""
        members = self._members(branches)
        if not members and kind != JOIN:
            raise fault("ValueError", "no branches, so none of them could win; pass at least one")
        if len(members) > self.limits.branches:
            raise exceeded("branches", self.limits.branches, f"the group has {len(members):,} branches")
        operation = self.open(kind)
        operation.keys = list(branches) if isinstance(branches, dict) else None
        operation.members = members
        operation.fails_fast = fails_fast
        operation.left = len(members)
        ended = [number for number in members if self.table[number].state != OPEN]
        for number in members:
            if self.table[number].state == OPEN:
                self.table[number].groups.append(operation.number)
        for number in ended:
            if operation.state == OPEN and (decided := self._decision(operation, self.table[number])) is not None:
                self._end(operation, *decided)
        if not members:
            self._end(operation, value=[] if operation.keys is None else {})
        return Handle(operation.number)

    def _members(self, branches: Any) -> list[int]:
        if type(branches) not in (dict, list):
            raise fault("TypeError", "branches are handles in a dict or list")
        values = list(branches.values()) if isinstance(branches, dict) else branches
        for value in values:
            if type(value) is not Handle:
                raise fault("TypeError", f"a branch is a handle, not {type_name(value)}; do not await it before")
            if value.number == NO_HANDLE:
                raise fault("TypeError", "a branch is an operation that takes time")
        return [value.number for value in values]

    # Ends

    def settle(self, number: int, outcome: FlowOutcome) -> bool:
        """End an operation of the outside. False if it has ended before, or nothing can await it."""
        operation = self.table.get(number)
        if operation is None or operation.state != OPEN or operation.kind != PRIMITIVE:
            return False
        value, error = self._read(outcome)
        self._end(operation, value=value, error=error)
        return True

    def settle_member(self, number: int, index: int, outcome: FlowOutcome) -> bool:
        """End one child of a map."""
        operation = self.table.get(number)
        if operation is None or operation.state != OPEN or operation.kind != MAP:
            return False
        request = operation.request
        assert isinstance(request, MapChildren)
        key = str(index)
        if not 0 <= index < request.count or key in operation.results or key in operation.errors:
            return False
        value, error = self._read(outcome)
        if error is None:
            operation.results[key] = value
        else:
            operation.errors[key] = error.as_dict()
        operation.left -= 1
        if not operation.left:
            self._end_map(operation, request.count)
        return True

    def _end_map(self, operation: OpenOperation, count: int) -> None:
        if operation.errors:
            in_order = [str(place) for place in range(count)]
            results = {key: operation.results[key] for key in in_order if key in operation.results}
            errors = {key: operation.errors[key] for key in in_order if key in operation.errors}
            self._end(operation, error=join_failed(results, errors))
        else:
            self._end(operation, value=[operation.results[str(place)] for place in range(count)])

    def _read(self, outcome: FlowOutcome) -> tuple[Any, ErrorValue | None]:
        if isinstance(outcome, FlowDone):
            try:
                return from_json(outcome.value, "the result", self.limits), None
            except FlowFault as broken:
                return None, broken.error
        fields = {name: value for name, value in outcome.fields.items() if name not in ("type", "message")}
        return None, ErrorValue(outcome.type, outcome.message, fields)

    def end_path(self, path: Path, value: Any = None, error: ErrorValue | None = None) -> None:
        """End the operation of a path that returned or raised."""
        del self.paths[path.number]
        operation = self.table.get(path.handle)
        if operation is not None and operation.state == OPEN:
            is_cancelled = error is not None and error.type == CANCELLED
            self._end(operation, value=value, error=withdrawn(operation) if is_cancelled else error)

    def _end(self, operation: OpenOperation, value: Any = None, error: ErrorValue | None = None) -> None:
        """End an operation, the groups that this decides, and their losers, without recursion."""
        ended: deque[_End] = deque([(operation, value, error)])
        while ended:
            one, value, error = ended.popleft()
            if one.state != OPEN:
                continue
            self._close(one, value, error)
            groups, one.groups = one.groups, []
            for number in groups:
                group = self.table.get(number)
                if group is not None and group.state == OPEN:
                    decided = self._decision(group, one)
                    if decided is not None:
                        ended.append((group, *decided))
            if one.kind in GROUPS:
                for loser in self._losers(one):
                    ended.extend(self._cancellation(loser))

    def _close(self, operation: OpenOperation, value: Any, error: ErrorValue | None) -> None:
        operation.state = DONE if error is None else FAILED
        operation.value, operation.error = value, error
        operation.results, operation.errors = {}, {}
        self.open_count -= 1
        paths, operation.paths = operation.paths, []
        if paths and error is not None:
            self.raised.add(operation, self.table)
        for number in paths:
            path = self.paths[number]
            path.wait = NOT_WAITING
            if error is None:
                path.frames[-1].stack.append(value)
            else:
                path.error = copy_of(error)
            self.ready.append(number)

    def _decision(self, group: OpenOperation, branch: OpenOperation) -> tuple[Any, ErrorValue | None] | None:
        """Count the end of a branch. Return value and error of the group if this decides it."""
        group.left -= 1
        if group.kind == JOIN:
            if group.left and not (group.fails_fast and branch.state == FAILED):
                return None
            return self._joined(group)
        if branch.state == DONE:
            return [group.key(group.members.index(branch.number)), branch.value], None
        if group.kind == FIRST:
            return None, branch.error
        if group.left:
            return None
        return None, race_failed({str(group.key(at)): error for at, error in self._errors(group)})

    def _joined(self, group: OpenOperation) -> tuple[Any, ErrorValue | None]:
        operations = [(place, self.table[number]) for place, number in enumerate(group.members)]
        results = {group.key(place): one.value for place, one in operations if one.state == DONE}
        errors = {str(group.key(place)): error for place, error in self._errors(group)}
        if errors:
            return None, join_failed({str(key): value for key, value in results.items()}, errors)
        return (list(results.values()) if group.keys is None else results), None

    def _errors(self, group: OpenOperation) -> list[tuple[int, dict[str, Any]]]:
        errors = ((place, self.table[number].error) for place, number in enumerate(group.members))
        return [(place, error.as_dict()) for place, error in errors if error is not None]

    # Losers

    def cancel(self, number: int) -> None:
        """Cancel what a handle stands for, because the program says so."""
        operation = self.table.get(number)
        if operation is not None:
            for end in self._cancellation(operation):
                self._end(*end)

    def _losers(self, group: OpenOperation) -> list[OpenOperation]:
        """Return the branches of a decided group that nothing else awaits. A child of `start` continues."""
        found = []
        for number in dict.fromkeys(group.members):
            branch = self.table[number]
            if branch.state == OPEN:
                branch.groups = [one for one in branch.groups if one != group.number]
                if _is_idle(branch):
                    found.append(branch)
        return found

    def _cancellation(self, operation: OpenOperation) -> list[_End]:
        """Cancel an operation, and return how it ends. A path ends later, after its finally blocks."""
        while operation.kind == PATH and operation.state == OPEN:
            path = self.paths[operation.members[0]]
            path.error = ErrorValue(CANCELLED, "the path was cancelled")
            if path.wait == NOT_WAITING:
                return []
            operation = self.table[path.wait]
            operation.paths.remove(path.number)
            path.wait = NOT_WAITING
            self.ready.append(path.number)
            if not _is_idle(operation):
                return []
        if operation.state != OPEN:
            return []
        if operation.request is not None:
            self.requests.append(Withdraw(handle=operation.number, line=operation.request.line))
        return [(operation, None, withdrawn(operation))]

    # Reading

    def open_requests(self) -> list[OpenRequest]:
        """Return the requests that have no answer yet."""
        return [one.saved_request() for one in self.table.values() if one.state == OPEN and one.request is not None]

    def keep(self, reachable: set[int], writer: HeapWriter) -> None:
        """Forget operations that no value and no path refers to: ended ones, and children that nothing awaits.

        The results of kept operations are values, too, so the writer may find further handles in them.
        """
        kept: set[int] = set()
        pending = set(reachable)
        for one in self.table.values():
            if one.state == OPEN and (one.paths or one.groups or not one.is_child):
                pending.add(one.number)
        while pending:
            one = self.table[pending.pop()]
            kept.add(one.number)
            if one.kind in GROUPS and one.state != DONE:  # a recovery may open a failed one again
                pending.update(number for number in one.members if number in self.table and number not in kept)
            if one.kind == PATH and one.state == DONE and type(one.value) in (list, dict, Handle):
                writer.put(one.value)
                writer.finish()
                pending |= writer.handles - kept
        for number in [number for number in self.table if number not in kept]:
            if self.table.pop(number).state == OPEN:
                self.open_count -= 1


_End = tuple[OpenOperation, Any, ErrorValue | None]
"""An operation, and the value or error with which it ends."""


def _is_idle(operation: OpenOperation) -> bool:
    """True if nothing awaits an operation any more, and it must not go on by itself, as a started child does."""
    request = operation.request
    goes_on = isinstance(request, CallChild) and request.is_awaited_kind == "start"
    return not operation.paths and not operation.groups and not goes_on


def _without_payload(request: OpenRequest) -> OpenRequest:
    """Return a request as the state keeps it. A payload is needed only once, to create the child."""
    if isinstance(request, CallChild):
        verb = request.is_awaited_kind
        return CallChild(handle=request.handle, line=request.line, type=request.type, payload="", is_awaited_kind=verb)
    return replace(request, payloads=(), options={}) if isinstance(request, MapChildren) else request
