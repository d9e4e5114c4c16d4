"""Open operations: the waits of a parent with thousands of children are built once, not at each wake."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.checkpoint import Suspend
from holdfast.core.codec import Codec
from holdfast.core.model import WaitKind
from holdfast.runner.inbox import Inbox
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import ChildEnd, Reception, Sleep
from holdfast.runner.pending_checkpoint import Registration

ANYTHING: Codec[Any] = Codec(Any)


def child(number: int) -> ChildEnd:
    operation = ChildEnd(f"child#{number}", f"id-{number}", ANYTHING)
    operation.serial = number
    return operation


def reception(serial: int) -> Reception:
    operation = Reception("news", WaitKind.EVENT, ("news",), ANYTHING, deadline=None)
    operation.serial = serial
    return operation


def waiting_for(count: int) -> OpenOperations:
    waiting = OpenOperations(Inbox((), 0))
    for number in range(count):
        waiting.add(child(number), is_recorded=False)
    return waiting


def calls_of(act: Callable[[], object]) -> int:
    """Return the number of Python function calls."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    gc.collect()
    gc.disable()  # finalizers of other objects do not count
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def wake_up(count: int) -> int:
    waiting = waiting_for(count)
    registration = Registration(waiting, is_first_lease=True)
    registration.write(Suspend())
    registration.mark_committed()
    removed = child(3)
    waiting.by_location[removed.location] = removed

    def go_on() -> None:
        waiting.remove(removed)
        registration.has_new()
        registration.write(Suspend())
        registration.mark_committed()

    return calls_of(go_on)


def test_waking_a_parent_costs_the_same_for_any_number_of_children() -> None:
    assert wake_up(5) == wake_up(2_000)


@pytest.mark.parametrize("is_first", [True, False])
def test_waits_of_all_kinds_are_in_the_order_of_their_requests(is_first: bool) -> None:
    waiting = OpenOperations(Inbox((), 0))
    if is_first:
        waiting.add(reception(10), is_recorded=False)
    waiting.add(child(1), is_recorded=False)
    gone = child(2)
    waiting.add(gone, is_recorded=False)
    sleep = Sleep("sleep", deadline=5)
    sleep.serial = 11
    waiting.add(sleep, is_recorded=False)
    waiting.add(child(3), is_recorded=False)
    waiting.remove(gone)
    if not is_first:
        waiting.add(reception(12), is_recorded=False)

    places = ["child#1", "sleep", "child#3"]
    expected = ["news", *places] if is_first else [*places, "news"]
    assert [wait.location for wait in waiting.waits()] == expected
    assert [wait.location for wait in waiting.named_waits()] == [place for place in expected if place != "sleep"]
    assert not waiting.has_only_children


def test_the_waits_of_children_that_are_requested_again_are_new() -> None:
    waiting = waiting_for(1)
    again = child(0)
    again.asked_at = 7
    waiting.add(again, is_recorded=False)

    assert [wait.since for wait in waiting.waits()] == [7]
