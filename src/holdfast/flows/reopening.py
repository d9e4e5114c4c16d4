"""Reopening: which failed children an await raised, and how a recovery opens their handles again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from holdfast.flows.operations import FAILED, FIRST, JOIN, MAP, OPEN, PRIMITIVE, RACE, OpenOperation, is_withdrawn

GROUPS = (JOIN, RACE, FIRST)
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
            if one.kind in GROUPS and self._can_reopen(one, table):
                pending += [table[number] for number in one.members if number in table]
            elif one.kind == MAP:
                for key, error in one.error.fields.get("errors", {}).items():
                    yield ChildPlace(one.number, int(key)), error
            elif one.kind == PRIMITIVE and one.is_child:
                yield ChildPlace(one.number), one.error.as_dict()

    def _can_reopen(self, group: OpenOperation, table: Table) -> bool:
        """True if a group waits again when one of its branches does. It cannot if the snapshot lost its branches."""
        return group.number >= self._first_number or has_all_branches(group, table)


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
