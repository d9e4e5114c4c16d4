"""Rewinds and forks to a location that has no entry of its own: it stands for all entries below it."""

from __future__ import annotations

import pytest

from holdfast.core import revision
from holdfast.core.commands import Fork
from holdfast.core.entries import PRUNED
from holdfast.core.errors import InvalidRequest
from holdfast.core.states import RunState
from tests.unit.core.a_history import NOW, RUN, a_child, child, mark, rewind, step, undo

STEPS = [step("a", 1), step("wait/~/x", 2), step("wait/~/y", 3), step("last", 4)]


def test_a_scope_is_rewound_from_its_first_entry_on() -> None:
    assert rewind(STEPS, "wait").dropped == ("wait/~/x", "wait/~/y", "last")


def test_a_name_that_only_begins_alike_is_not_inside() -> None:
    entries = [*STEPS, step("waits/~/z", 5)]

    assert rewind(entries, "waits").dropped == ("waits/~/z",)
    with pytest.raises(InvalidRequest, match="the run has no entry at 'wai'"):
        rewind(entries, "wai")


def test_a_child_that_was_started_inside_is_started_again() -> None:
    ended = [step("a", 1), child("wait/~/kid", 3, 1), step("wait/~/x", 2)]
    found = rewind(ended, "wait")
    assert (set(found.dropped), found.cancelled, found.unread) == ({"wait/~/x", "wait/~/kid"}, ("wait/~/kid",), ())

    is_open = [step("a", 1), child("wait/~/kid", 0, 1), step("wait/~/x", 2)]
    found = rewind(is_open, "wait", **{"wait/~/kid": a_child(RunState.SUSPENDED)})
    assert (set(found.dropped), found.cancelled) == ({"wait/~/x", "wait/~/kid"}, ("wait/~/kid",))


def test_a_map_is_rewound_with_all_its_children() -> None:
    entries = [step("a", 1), child("map/0", 3, 1), child("map/1", 2, 1)]

    assert set(rewind(entries, "map").dropped) == {"map/0", "map/1"}


def test_a_scope_around_a_pruned_loop_can_be_rewound_but_the_loop_cannot() -> None:
    entries = [step("a", 1), mark("wait/~/l/~5", 6, PRUNED), step("wait/~/l/~5/x", 7)]

    assert set(rewind(entries, "wait").dropped) == {"wait/~/l/~5", "wait/~/l/~5/x"}
    with pytest.raises(InvalidRequest, match="pruned"):
        rewind(entries, "wait/~/l")


def test_undos_are_no_scope() -> None:
    with pytest.raises(InvalidRequest, match="no entry at '~undo'"):
        rewind([step("a", 1, has_undo=True), undo("a", 2)], "~undo")


def test_a_fork_at_a_scope_keeps_what_was_before_it() -> None:
    entries = [step("a", 1), child("wait/~/kid", 0, 1), step("wait/~/x", 2), step("last", 3)]
    request = Fork(run_id="run", id="request", new_run_id="new", location="wait")

    _, kept = revision.fork(RUN, entries, request, NOW)

    assert [entry.location for entry in kept] == ["a"]
