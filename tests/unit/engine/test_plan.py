"""How far a run has got in its plan, found in its history and its waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.core.model import Entry, EntryState, Run, Wait, WaitKind
from holdfast.core.states import RunState
from holdfast.engine.explain import progress
from tests.unit.core.a_history import RUN, failed, rollback, step, undo

PLAN = ("a", "wait", "b")
LIVE = replace(RUN, state=RunState.RUNNING)


def states(entries: Sequence[Entry], run: Run = LIVE, *waits: str) -> list[str]:
    waiting = [Wait(location=at, kind=WaitKind.TIME, since=0) for at in waits]
    return [step.state for step in progress(PLAN, run, entries, waiting).steps]


def test_a_run_without_history_is_at_its_first_step() -> None:
    assert states([]) == ["current", "to_come", "to_come"]
    assert progress(PLAN, LIVE, [], []).number == 1


def test_the_cursor_is_after_a_step_that_is_done() -> None:
    assert states([step("a", 1)]) == ["done", "current", "to_come"]


def test_the_cursor_stays_at_a_step_that_is_tried_again() -> None:
    assert states([step("a", 0, state=EntryState.RETRYING)]) == ["current", "to_come", "to_come"]


def test_a_step_with_a_context_is_done_when_a_later_step_has_begun() -> None:
    inside = [step("a", 1), step("wait/~/x", 2)]

    assert states(inside) == ["done", "current", "to_come"]
    assert states([*inside, step("b", 0, state=EntryState.RETRYING)]) == ["done", "done", "current"]
    assert states([step("a", 1)], LIVE, "b") == ["done", "done", "current"]


def test_a_wait_shows_the_step_that_it_is_in() -> None:
    assert states([step("a", 1)], LIVE, "wait/~/sleep", "~max_run") == ["done", "current", "to_come"]


def test_after_the_last_step_there_is_no_cursor() -> None:
    assert progress(PLAN, LIVE, [step("a", 1), step("b", 2)], []).cursor is None
    assert states([], replace(RUN, state=RunState.SUCCEEDED)) == ["done", "done", "done"]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (RUN, "failed"),
        (replace(RUN, state=RunState.CANCELLED), "cancelled"),
    ],
)
def test_an_ended_run_shows_where_it_stopped(run: Run, expected: str) -> None:
    assert states([failed("a", 1)], run) == [expected, "skipped", "skipped"]


def test_a_rollback_shows_what_is_undone() -> None:
    entries = [step("a", 1, has_undo=True), step("wait/~/x", 2, has_undo=True), failed("b", 3), rollback(4)]
    run = replace(RUN, state=RunState.ROLLING_BACK, rollback=RunState.FAILED)

    assert states(entries, run) == ["done", "done", "failed"]
    assert states([*entries, undo("wait/~/x", 5), undo("a", 6)], run) == ["undone", "undone", "failed"]


def test_entries_that_are_not_in_the_plan_do_not_matter() -> None:
    assert states([step("a", 1), step("old", 2), step("ab/~/x", 3)]) == ["done", "current", "to_come"]
