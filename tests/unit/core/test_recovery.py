"""Recoveries: the new history of a failed run and the fate of its children, decided without a store."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.audit import KEY_REUSED, REQUEST
from holdfast.core.entries import PRUNED, record_of
from holdfast.core.errors import ErrorRecord, InvalidRequest, RunBusy
from holdfast.core.flow_revision import Revision
from holdfast.core.model import Arrival, AuditFact, EntryKind, EntryState, Run, WaitKind
from holdfast.core.revision import Recovery, is_willed, lost_key
from holdfast.core.states import ENDS, RunState
from tests.unit.core.a_history import (
    CANCELLED,
    NOW,
    OPEN,
    RUN,
    a_child,
    cancel,
    child,
    failed,
    failed_at,
    lost,
    mark,
    recover,
    rollback,
    step,
    undo,
)

# Dropped entries


def test_a_recovery_drops_failures_and_their_consequences() -> None:
    entries = [step("a", 1), failed("b", 2), step("handler", 3), step("before", 4, 1)]
    assert set(recover(entries, "b").dropped) == {"b", "handler"}


def test_a_recovery_keeps_the_branches_that_succeeded() -> None:
    entries = [
        failed("join/x/one", 1, 0),
        step("join/y/one", 2, 0),
        step("join/y/two", 3, 2),
        step("join/x/handler", 4, 3),
        step("+1/task", 5, 0),
        step("+1/next", 6, 5),
        step("after", 7, 6),
    ]
    assert set(recover(entries, "join/x/one").dropped) == {"join/x/one", "join/x/handler", "after"}


def test_a_recovery_drops_what_other_branches_did_because_of_the_failure() -> None:
    entries = [
        failed("join/x/one", 1, 0),
        step("join/y/cleanup", 2, 1),
        step("join/y/shielded", 3, 0),
        step("join/y/after_both", 4, 3),
        step("+1/emit", 5, 1, kind=EntryKind.EMIT),
        step("join/z/one", 6, 0),
        step("join/z/two", 7, 6),
        step("join/z/trying", 0, 2, state=EntryState.RETRYING),
    ]
    because = {"join/x/one", "join/y/cleanup", "join/y/after_both", "+1/emit", "join/z/trying"}
    assert set(recover(entries, "join/x/one").dropped) == because


def test_a_recovery_drops_effects_of_a_join_that_reported_the_failure_late() -> None:
    entries = [
        failed("outer/x/inner/a/one", 1, 0),
        step("outer/x/inner/b/one", 3, 0),
        step("outer/y/kept", 2, 0),
        step("outer/y/more", 4, 2),
        step("outer/y/cleanup", 5, 3),
    ]
    dropped = set(recover(entries, "outer/x/inner/a/one").dropped)
    assert dropped == {"outer/x/inner/a/one", "outer/y/cleanup"}


def test_a_failure_that_was_caught_and_did_no_harm_stays() -> None:
    entries = [failed("optional", 1), failed("b", 2)]
    assert recover(entries, "b").dropped == ("b",)


def test_a_run_whose_own_code_raised_keeps_everything() -> None:
    assert recover([step("a", 1)]) == Revision()


def test_a_wait_that_timed_out_is_waited_for_again_from_now_on() -> None:
    late = step("receive", 2, 1, kind=EntryKind.MESSAGE, state=EntryState.TIMED_OUT, result=None)
    revised = recover([step("a", 1), late, step("beside", 3, 0)], "receive")
    assert revised.dropped == ("receive",)
    assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]


def test_a_failed_operation_is_retried_from_now_on_so_that_a_timeout_around_it_has_its_full_time() -> None:
    revised = recover([step("a", 1), step("b", 2, 0), failed("c", 3, 1)], "c")
    assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]
    assert not revised.is_from_start
    assert recover([failed("a", 1, 0), step("b", 2, 0)], "a").is_from_start


def test_a_recovery_drops_undone_steps_and_everything_after_them() -> None:
    entries = [
        step("before", 1),
        step("a", 2, has_undo=True),
        step("~timer", 3, 0, kind=EntryKind.TIMER),
        failed("c", 4),
        rollback(5),
        undo("a", 6),
    ]
    revised = recover(entries, "c")
    assert set(revised.dropped) == {"a", "~timer", "c", "~rollback", "~undo/a"}
    assert revised.is_from_start  # the timer has its full time


def test_a_recovery_also_goes_back_to_a_failure_before_an_undone_step() -> None:
    entries = [failed("join/x/a", 1, 0), step("join/y/kept", 2, 0), step("join/y/b", 3, 2), rollback(4)]
    undone = [*entries, undo("join/y/b", 5)]
    assert set(recover(undone, "join/x/a").dropped) == {"join/x/a", "join/y/b", "~rollback", "~undo/join/y/b"}


def test_a_loop_reaches_an_undone_step_inside_it_again() -> None:
    entries = [
        mark("loop/~1", 1),
        step("loop/~1/x", 2, has_undo=True),
        mark("loop/~2", 3),
        step("loop/~2/x", 4),
        mark("loop", 5),
        failed("b", 6),
        rollback(7),
        undo("loop/~1/x", 8),
    ]
    dropped = recover(entries, "b").dropped
    assert set(dropped) == {entry.location for entry in entries[1:]}


def test_a_step_undone_beside_a_loop_that_pruned_its_iterations_cannot_be_executed_again() -> None:
    entries = [
        step("both/one/a", 5, has_undo=True),
        mark("both/two/loop/~11", 20, PRUNED),
        failed("c", 23),
        rollback(24),
        undo("both/one/a", 26),
    ]
    with pytest.raises(InvalidRequest, match="at 'both/one/a' the loop 'both/two/loop' was in iterations"):
        recover(entries, "c")


def test_a_pruned_loop_after_an_undone_step_starts_over() -> None:
    entries = [step("a", 5, has_undo=True), mark("loop/~11", 20, PRUNED), failed("c", 23), rollback(24), undo("a", 26)]
    assert set(recover(entries, "c").dropped) == {entry.location for entry in entries}


def test_undone_steps_in_pruned_iterations_cannot_be_executed_again() -> None:
    entries = [
        step("loop/~1/x", 1, has_undo=True),
        mark("loop/~11", 20, PRUNED),
        failed("loop/~11/y", 21),
        rollback(22),
        undo("loop/~1/x", 23),
    ]
    with pytest.raises(InvalidRequest, match="iteration 1 of the loop 'loop' must run again"):
        recover(entries, "loop/~11/y")


def test_a_run_that_is_blocked_during_its_rollback_keeps_its_undo_records() -> None:
    run = replace(RUN, state=RunState.BLOCKED, rollback=RunState.FAILED)
    why = ErrorRecord(type="ValueError", message="no")
    around = replace(rollback(3), error=why)
    entries = [step("a", 1), step("b", 2), around, undo("b", 4), undo("a", 5, EntryState.FAILED)]
    assert Recovery(run, entries).revision({}, (), NOW) == Revision(dropped=("~undo/a",), reason=why)


def test_failed_locations_of_a_child_are_not_those_of_its_parent() -> None:
    """The recorded failure of a child is the cause of its parent's, and names steps of the child's history."""
    cause = ErrorRecord(type="StepFailed", message="", locations=("pay",))
    error = ErrorRecord(type="ChildFailed", message="", cause=cause, locations=("call",))
    entries = [failed("pay", 1), failed("call", 2)]
    assert Recovery(replace(RUN, error=error), entries).revision({}, (), NOW).dropped == ("call",)


def test_a_blocked_run_drops_nothing_whatever_its_code_was_handling() -> None:
    run = replace(failed_at("a"), state=RunState.BLOCKED)
    assert Recovery(run, [failed("a", 1)]).revision({}, (), NOW) == Revision()


# Reopened children


FAILED = {"state": EntryState.FAILED, "error": ErrorRecord(type="E", message=""), "result": None, "attempts": 1}


def one(state: RunState, reason: str = "", id: str = "call", **options: Any) -> dict[str, Run]:
    return {id: replace(a_child(state, reason, **options), id=id)}


def test_a_child_whose_failure_ended_the_run_is_reopened() -> None:
    entries = [step("a", 1), child("call", 2, 1, **FAILED)]
    assert lost(entries, "call", children=one(RunState.FAILED)) == {"call": "call"}


def test_a_child_whose_failure_was_caught_is_not_reopened() -> None:
    entries = [child("call", 1, 0, **FAILED), failed("b", 2)]
    assert lost(entries, "b", children=one(RunState.FAILED)) == {}
    assert [entry.position for entry in recover(entries, "b", children=one(RunState.FAILED)).reset] == [1]


def test_a_child_whose_caught_failure_came_after_an_undone_step_is_not_reopened() -> None:
    entries = [step("a", 1, has_undo=True), child("call", 2, 1, **FAILED), failed("b", 3), rollback(4), undo("a", 5)]
    children = one(RunState.FAILED)
    assert lost(entries, "b", children=children) == {}
    assert [arrival.state for arrival in recover(entries, "b", children=children).unread] == [RunState.FAILED]


def test_a_child_that_failed_unnoticed_is_reopened_if_it_was_awaited() -> None:
    for attempts, expected in ((1, {"call": "call"}), (0, {})):
        entries = [failed("a", 1), child("call", 0, 0, attempts=attempts)]
        assert lost(entries, "a", children=one(RunState.FAILED)) == expected


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_child_that_was_cancelled_because_the_run_ended_is_reopened(attempts: int) -> None:
    closed = one(RunState.CANCELLED, rules.CLOSING.reason)
    assert lost([child("call", 0, 0, attempts=attempts)], children=closed) == {"call": "call"}


def test_a_child_that_a_person_cancelled_is_not_reopened() -> None:
    for reason in ("enough", rules.CLOSING.reason, rules.BY_PARENT.reason):
        for entry in (child("call", 0, 0, attempts=1), child("call", 1, 0, **FAILED)):
            assert lost([entry], "call", willed=["call"], children=one(RunState.CANCELLED, reason)) == {}


def test_a_child_that_ran_out_of_time_is_reopened() -> None:
    entries = [child("call", 1, 0, **FAILED)]
    assert lost(entries, "call", children=one(RunState.CANCELLED, "it ran longer than its max_run")) == {"call": "call"}


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, *(state for state in RunState if state not in ENDS)])
def test_a_child_that_has_not_failed_is_not_reopened(state: RunState) -> None:
    for entry in (child("call", 0, 0, attempts=1), child("call", 1, 0, **FAILED)):
        assert lost([entry], "call", children=one(state)) == {}


def test_a_child_that_was_cancelled_because_of_the_failure_is_reopened() -> None:
    entries = [
        failed("join/x/one", 1, 0),
        child("join/y/call", 0, 0, ref="call"),
        cancel("join/y/cancel:call", 2, 1, ref="call"),
    ]
    assert lost(entries, "join/x/one", children=one(RunState.CANCELLED, rules.BY_PARENT.reason)) == {
        "call": "join/y/call"
    }
    revised = recover(entries, "join/x/one", children=one(RunState.PENDING))
    assert set(revised.dropped) == {"join/x/one", "join/y/cancel:call"}
    assert (revised.cancelled, revised.unread, revised.attached) == ((), (), {"call": "join/y/call"})


def test_a_child_that_the_code_cancelled_before_stays_cancelled() -> None:
    entries = [child("call", 2, 0, **FAILED | {"error": CANCELLED}), cancel("cancel:call", 1, 0, ref="call")]
    by_parent = one(RunState.CANCELLED, rules.BY_PARENT.reason)
    assert lost(entries, "call", children=by_parent) == {}
    assert [arrival.state for arrival in recover(entries, "call", children=by_parent).unread] == [RunState.CANCELLED]


def test_children_of_a_map_that_the_failure_had_cancelled_are_reopened_and_no_others() -> None:
    entries = [
        child("+1/all#2/0", 1, 0, ref="done"),
        child("+1/all#2/1", 0, 0, ref="cut off"),
        child("+1/all/0", 0, 0, ref="cancelled before"),
        cancel("+1/cancel:all", 2, 1),
        failed("+2/one", 3, 0),
        cancel("+1/cancel:all%232", 4, 3),
    ]
    by_parent = RunState.CANCELLED, rules.BY_PARENT.reason
    children = one(*by_parent, id="cut off") | one(*by_parent, id="cancelled before")
    assert lost(entries, "+2/one", children=children) == {"cut off": "+1/all#2/1"}
    assert set(recover(entries, "+2/one", children=children).dropped) == {"+2/one", "+1/cancel:all%232"}


def test_a_run_that_is_only_blocked_reopens_no_child() -> None:
    """The run has not seen their ends yet, and its code may catch them."""
    run = replace(RUN, state=RunState.BLOCKED)
    recovery = Recovery(run, [child("call", 0, 0, attempts=1)])
    assert list(recovery.lost(one(RunState.FAILED), ())) == []
    assert recovery.revision(one(RunState.FAILED), {"call"}, NOW) == Revision()


@pytest.mark.parametrize("reason", [rules.CLOSING.reason, rules.BY_PARENT.reason])
def test_a_run_whose_child_still_rolls_back_is_busy(reason: str) -> None:
    entries = [failed("a", 1, 0), child("+1/call", 0, 0, ref="call"), cancel("+1/cancel:call", 2, 1, ref="call")]
    undoing = one(RunState.ROLLING_BACK, reason, rollback=RunState.CANCELLED)
    with pytest.raises(RunBusy, match="run call, a child of run run, still undoes its steps"):
        Recovery(failed_at("a"), entries).check_undone(undoing)
    Recovery(failed_at("a"), entries).check_undone(one(RunState.ROLLING_BACK, "enough", rollback=RunState.CANCELLED))


# Children that are kept


def test_a_child_that_ended_before_the_cancel_keeps_its_end() -> None:
    entries = [
        failed("join/x/one", 1, 0),
        child("join/y/call", 0, 0, ref="call"),
        cancel("join/y/cancel:call", 2, 1, ref="call"),
    ]
    done = a_child(RunState.SUCCEEDED, result="7", finished_at=5)
    revised = recover(entries, "join/x/one", children={"call": done})
    assert (set(revised.dropped), revised.cancelled) == ({"join/x/one", "join/y/cancel:call"}, ())
    assert [arrival.payload for arrival in revised.unread] == ["7"]


def test_only_an_unsuccessful_end_has_to_be_looked_up() -> None:
    entries = [
        child("done", 1, 0),
        child("caught", 2, 0, **FAILED),
        step("a", 3, has_undo=True),
        child("again", 5, 4),
        child("bad", 6, 4, **FAILED),
        child("open", 0, 0),
        rollback(7),
        undo("a", 8),
    ]
    assert Recovery(failed_at("bad"), entries).concerned == ["bad", "open"]


def test_a_child_that_has_succeeded_meanwhile_keeps_its_end() -> None:
    for entry in (child("call", 2, 1, **FAILED), child("call", 0, 1, attempts=1)):
        revised = recover([step("a", 1), entry], "call", children=one(RunState.SUCCEEDED, result="7", finished_at=5))
        (end,) = revised.unread
        assert (revised.dropped, end.name, end.payload, end.state) == ((), "call", "7", RunState.SUCCEEDED)
        assert {e.location: e.position for e in revised.reset}.get("call", 0) == 0


def test_a_child_that_is_alive_is_awaited_again() -> None:
    revised = recover([step("a", 1), child("call", 2, 1, **FAILED)], "call", children=one(RunState.RUNNING))
    assert (revised.dropped, revised.unread, revised.attached) == ((), (), {"call": "call"})
    (entry, _) = revised.reset
    assert (entry.location, entry.state, entry.position, entry.attempts) == ("call", EntryState.STARTED, 0, 1)


def test_a_pruned_child_is_started_again() -> None:
    for entry in (child("call", 2, 1, **FAILED), child("call", 0, 1, attempts=1)):
        assert recover([step("a", 1), entry], "call").dropped == ("call",)


def test_a_pruned_child_with_a_recorded_end_is_not_started_again() -> None:
    run = replace(RUN, state=RunState.BLOCKED)
    assert Recovery(run, [child("call", 0, 0)]).revision({}, {"call"}, NOW) == Revision()


def test_a_wait_for_a_reopened_child_has_its_full_time() -> None:
    awaited = [*OPEN[:2], child("call", 0, 1, attempts=1)]
    revised = recover(awaited, children=one(RunState.PENDING, attempt=2, start_at=NOW))
    assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]


def test_a_child_that_is_not_awaited_moves_no_time() -> None:
    forgotten = [*OPEN[:2], child("call", 0, 0, attempts=0)]
    revised = recover(forgotten, children=one(RunState.PENDING, attempt=2, start_at=NOW))
    assert revised.reset == ()
    assert not revised.is_from_start


def test_time_does_not_go_back_to_a_child_that_never_stopped() -> None:
    ended = replace(failed_at("c"), finished_at=9)
    for alive in (one(RunState.RUNNING), one(RunState.RUNNING, attempt=2, start_at=8)):
        entries = [child("call", 0, 0), step("a", 1), failed("c", 2)]
        revised = Recovery(ended, entries).revision(alive, (), NOW)
        assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]
        assert not revised.is_from_start


def test_a_child_started_before_an_undone_step_loses_only_its_recorded_end() -> None:
    entries = [
        child("good", 3, 0),
        child("bad", 4, 0, **FAILED),
        step("a", 1, has_undo=True),
        rollback(5),
        undo("a", 6),
    ]
    revised = recover(entries, "bad", children=one(RunState.PENDING, id="bad"))
    assert (set(revised.dropped), revised.cancelled) == ({"a", "~rollback", "~undo/a"}, ())
    assert [arrival.name for arrival in revised.unread] == ["good"]
    assert {entry.location: entry.state for entry in revised.reset[:2]} == dict.fromkeys(
        ["good", "bad"], EntryState.STARTED
    )


def test_a_child_that_the_code_may_not_reach_again_is_kept() -> None:
    """An operation that is executed again may have another result; a `retrying` entry need not be reached."""
    after_undo = [
        step("a", 1, has_undo=True),
        child("good", 2, 1),
        child("bad", 3, 2, **FAILED),
        rollback(4),
        undo("a", 5),
    ]
    after_failure = [failed("b", 1), child("refund", 2, 1)]
    revised = recover(after_undo, "bad", children=one(RunState.PENDING, id="bad"))
    kept = {entry.location: (entry.state, entry.since) for entry in revised.reset if entry.kind is EntryKind.CHILD}
    assert kept == dict.fromkeys(["good", "bad"], (EntryState.RETRYING, 0))
    assert [arrival.name for arrival in revised.unread] == ["good"]

    revised = recover(after_failure, "b")
    assert (revised.dropped, [arrival.name for arrival in revised.unread]) == (("b",), ["refund"])
    assert [(entry.location, entry.state) for entry in revised.reset] == [("refund", EntryState.RETRYING)]


def test_read_messages_are_delivered_first_again_in_their_order() -> None:
    message = Arrival(number=9, kind=WaitKind.MESSAGE, name="n", at=5, payload="1", ref="m")
    entries = [
        step("a", 1, has_undo=True),
        step("receive", 3, 1, kind=EntryKind.MESSAGE, result=record_of([message])),
        child("good", 2, 1),
        child("open", 0, 0),
        rollback(4),
        undo("a", 5),
    ]
    unread = recover(entries, children=one(RunState.SUCCEEDED, id="open", result="1")).unread
    assert [arrival.name for arrival in unread] == ["good", "n", "open"]


# The actor of a cancel, and the owner of a key


def facts(*told: tuple[str, dict[str, str | int]]) -> list[AuditFact]:
    return [AuditFact(run_id="call", event=event, at=0, data=data) for event, data in told]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], False),
        (["cancelled"], True),
        (["rolling_back"], True),
        (["paused", "cancelled", "forked"], True),
        (["cancelled", "recovered"], False),
        (["cancelled", "rewound"], False),
        (["recovered", "cancelled"], True),
    ],
)
def test_a_person_cancelled_a_run_if_that_was_its_last_request(events: list[str], expected: bool) -> None:
    asked: list[tuple[str, dict[str, str | int]]] = [(event, {REQUEST: "r"}) for event in events]
    assert is_willed(facts(*asked, ("cancelled", {}))) is expected


def test_an_ended_run_takes_the_key_that_it_lost_last_again() -> None:
    reused = facts((KEY_REUSED, {"key": "k", "to": "x"}), (KEY_REUSED, {"key": "l", "to": "y"}))
    assert lost_key(RUN, reused) == "l"
    assert lost_key(replace(RUN, key="k"), reused) is None
    assert lost_key(RUN, facts(("claimed", {}))) is None
