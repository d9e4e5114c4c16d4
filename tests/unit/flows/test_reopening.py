"""Reopening: the failed children behind the errors that awaits raise."""

from __future__ import annotations

from holdfast.flows.faults import ErrorValue
from holdfast.flows.operations import FAILED, FIRST, PRIMITIVE, ChildPlace, OpenOperation, RaisedFailures
from holdfast.flows.requests import CallChild


class CountingTable(dict[int, OpenOperation]):
    """A table of operations that counts how often it is read."""

    reads = 0

    def __getitem__(self, number: int) -> OpenOperation:
        self.reads += 1
        return super().__getitem__(number)


def child(number: int) -> OpenOperation:
    request = CallChild(handle=number, line=1, type="x", payload="{}", options={}, is_awaited_kind="call")
    return OpenOperation(number, PRIMITIVE, request)


def group(number: int, *members: int) -> OpenOperation:
    operation = OpenOperation(number, FIRST)
    operation.members = list(members)
    return operation


def failed(operation: OpenOperation) -> OpenOperation:
    operation.state, operation.error = FAILED, ErrorValue("ChildFailed", "no")
    return operation


def test_failures_behind_a_long_chain_of_groups_are_visited_once() -> None:
    length = 300
    table = CountingTable({1: failed(child(1))})
    for number in range(2, length):
        table[number] = failed(group(number, number - 1))
    raised = RaisedFailures()

    for number in range(length - 1, 0, -1):
        raised.add(dict(table)[number], table)

    assert list(raised.errors) == [ChildPlace(1)]
    assert table.reads < 2 * length


def test_a_branch_that_fails_after_its_group_is_noted_when_it_is_awaited() -> None:
    late = child(2)
    table = {1: failed(child(1)), 2: late, 3: failed(group(3, 1, 2))}
    raised = RaisedFailures()
    raised.add(table[3], table)

    raised.add(failed(late), table)

    assert list(raised.errors) == [ChildPlace(1), ChildPlace(2)]
