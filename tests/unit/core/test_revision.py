"""Revisions: what a rewind, a recovery and a fork make of a history, decided without any store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import revision, rules
from holdfast.core.checkpoint import Fork
from holdfast.core.errors import ErrorRecord, InvalidRequest, RunBusy
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Run, WaitKind
from holdfast.core.received import record_of
from holdfast.core.revision import EVENTS_LOCATION, PRUNED, Revision
from holdfast.core.rounds import ROUNDS_LOCATION, rounds_after, rounds_in
from holdfast.core.states import RunState

NOW = 1_000
RUN = Run(id="run", type="t", state=RunState.FAILED, payload="{}", created_at=0, start_at=0, updated_at=0)


def step(location: str, position: int, since: int | None = None, **options: Any) -> Entry:
    since = max(0, position - 1) if since is None else since
    fields: dict[str, Any] = {"kind": EntryKind.STEP, "state": EntryState.DONE, "result": "1", "finished_at": position}
    fields |= {"location": location, "position": position, "since": since} | options
    return Entry(**fields)


def failed(location: str, position: int, since: int | None = None, **options: Any) -> Entry:
    error = ErrorRecord(type="ValueError", message="no")
    return step(location, position, since, **{"state": EntryState.FAILED, "result": None, "error": error} | options)


def child(location: str, position: int, since: int, **options: Any) -> Entry:
    state = EntryState.DONE if position else EntryState.STARTED
    return step(location, position, since, **{"kind": EntryKind.CHILD, "state": state, "ref": location} | options)


def mark(location: str, position: int, ref: str | None = None) -> Entry:
    return step(location, position, kind=EntryKind.LOOP, ref=ref)


def undo(location: str, position: int, state: EntryState = EntryState.DONE) -> Entry:
    return step(f"~undo/{location}", position, 0, kind=EntryKind.UNDO, state=state)


def rollback(position: int) -> Entry:
    return step(rules.ROLLBACK_LOCATION, position, kind=EntryKind.ROLLBACK)


def rewind(entries: Sequence[Entry], location: str, run: Run = RUN, **children: Run) -> Revision:
    return revision.rewind(run, entries, location, children, NOW)


def recover(entries: Sequence[Entry], *faults: str, children: Mapping[str, Run] | None = None) -> Revision:
    error = ErrorRecord(type="StepFailed", message="no", locations=faults)
    return revision.recover(replace(RUN, error=error), entries, children or {}, NOW)


def fork(entries: Sequence[Entry], location: str, **patch: str) -> tuple[Run, list[str]]:
    request = Fork(id="f", run_id="fork", location=location, patch=patch)
    run, copied = revision.fork(RUN, entries, request, NOW)
    return run, [entry.location for entry in copied]


# Rewinding


def test_a_rewind_drops_what_was_settled_later_and_what_was_asked_for_later() -> None:
    entries = [step("a", 1), step("b", 2), step("c", 3, 1), step("open", 0, 1), step("later", 0, 2)]
    assert set(rewind(entries, "b").dropped) == {"b", "c", "later"}


def test_a_rewind_to_what_is_not_settled_drops_what_came_after_it_was_asked_for() -> None:
    entries = [step("a", 1), step("open", 0, 1), step("beside", 0, 1), step("b", 2, 1)]
    assert set(rewind(entries, "open").dropped) == {"open", "b"}


def test_a_rewind_into_a_loop_forgets_the_whole_loop() -> None:
    entries = [step("a", 1), step("loop/~1/x", 2), step("loop/~2/x", 3), mark("loop", 4), step("b", 5)]
    assert set(rewind(entries, "loop/~2/x").dropped) == {"loop/~1/x", "loop/~2/x", "loop", "b"}


def test_a_rewind_into_a_pruned_loop_is_refused_and_one_to_before_it_is_not() -> None:
    entries = [step("a", 1), mark("loop/~11", 20, PRUNED), step("loop/~11/x", 21), step("b", 30)]
    with pytest.raises(InvalidRequest, match="pruned"):
        rewind(entries, "loop/~11/x")
    assert "a" in rewind(entries, "a").dropped
    assert rewind(entries, "b").dropped == ("b",)


def test_a_rewind_beside_a_loop_that_has_pruned_what_it_did_then_is_refused() -> None:
    entries = [step("both/one/a", 5), mark("both/two/loop/~11", 20, PRUNED), step("both/one/b", 25, 5)]
    with pytest.raises(InvalidRequest, match="in iterations that are pruned"):
        rewind(entries, "both/one/a")
    assert rewind(entries, "both/one/b").dropped == ("both/one/b",)


def test_a_rewind_goes_back_to_before_what_was_undone() -> None:
    entries = [step("a", 1), step("b", 2, has_undo=True), step("c", 3), rollback(4), undo("b", 5)]
    assert set(rewind(entries, "c").dropped) == {"b", "c", "~rollback", "~undo/b"}


def test_a_rewind_drops_an_undo_that_is_not_done_and_keeps_what_it_was_to_undo() -> None:
    entries = [step("a", 1, has_undo=True), step("b", 2), rollback(3), undo("a", 0, EntryState.RETRYING)]
    assert set(rewind(entries, "b").dropped) == {"b", "~rollback", "~undo/a"}


def test_after_a_rewind_time_goes_on_after_the_last_fact() -> None:
    entries = [step("a", 1), step("send:x", 2, kind=EntryKind.SEND), step("b", 3)]
    revised = rewind(entries, "b")
    assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]
    assert not revised.is_from_start
    assert rewind(entries, "a").is_from_start
    assert rewind(entries, "a").reset == ()


def test_a_child_that_is_rewound_to_is_started_anew() -> None:
    entries = [step("a", 1), child("call", 3, 1), step("b", 2, 1)]
    revised = rewind(entries, "call")
    assert (revised.dropped, revised.cancelled, revised.unread) == (("call",), ("call",), ())


def test_a_child_that_was_started_before_has_only_its_end_forgotten() -> None:
    cancelled = rules.cancellation("enough")
    entries = [
        step("a", 1),
        step("b", 2),
        child("map/0", 3, 1),
        child("map/1", 4, 1, state=EntryState.FAILED, error=cancelled, result=None),
    ]
    revised = rewind(entries, "b")
    assert revised.dropped == ("b",)
    assert [(e.location, e.state, e.position) for e in revised.reset[:2]] == [
        ("map/0", EntryState.STARTED, 0),
        ("map/1", EntryState.STARTED, 0),
    ]
    told = [(one.name, one.state, one.payload, one.group) for one in revised.unread]
    assert told == [
        ("map/0", RunState.SUCCEEDED, "1", "run/map"),
        ("map/1", RunState.CANCELLED, None, "run/map"),
    ]


def test_messages_become_unread_in_the_order_in_which_they_were_read() -> None:
    def reception(location: str, position: int, *refs: str) -> Entry:
        message = Arrival(number=9, kind=WaitKind.MESSAGE, name="n", at=5)
        arrivals = [replace(message, payload=f'"{ref}"', ref=ref) for ref in refs]
        return step(location, position, kind=EntryKind.MESSAGE, result=record_of(arrivals))

    entries = [reception("late", 3, "m3"), reception("early", 1, "m1", "m2"), step("b", 2)]
    unread = rewind(entries, "early").unread
    assert [(one.kind, one.ref, one.payload, one.at) for one in unread] == [
        (WaitKind.MESSAGE, ref, f'"{ref}"', 5) for ref in ("m1", "m2", "m3")
    ]


def test_a_wait_that_timed_out_has_nothing_to_give_back() -> None:
    late = step("receive", 1, kind=EntryKind.MESSAGE, state=EntryState.TIMED_OUT, result=None)
    assert rewind([late], "receive").unread == ()


def test_an_event_that_is_unread_again_has_not_been_had() -> None:
    arrival = Arrival(number=1, kind=WaitKind.EVENT, name="paid", at=0, payload="1", ref="7")
    event = step("event", 1, kind=EntryKind.EVENT, result=record_of([arrival]), ref="7")
    cursors = Entry(
        location=EVENTS_LOCATION, kind=EntryKind.EVENT, state=EntryState.STARTED, result='{"paid":9,"sent":4}'
    )
    revised = rewind([event, cursors, step("b", 2)], "event")
    assert EVENTS_LOCATION not in revised.dropped
    (kept,) = revised.reset
    assert msgspec.json.decode(kept.result or "") == {"paid": 6, "sent": 4}


@pytest.mark.parametrize("location", ["nowhere", EVENTS_LOCATION, ROUNDS_LOCATION, "~rollback", "~undo/a"])
def test_only_what_the_code_did_can_be_rewound_to(location: str) -> None:
    cursors = Entry(location=EVENTS_LOCATION, kind=EntryKind.EVENT, state=EntryState.STARTED, result="{}")
    with pytest.raises(InvalidRequest, match=rf"no entry at '{location}'; it has 'a'$"):
        rewind([step("a", 1), cursors, rounds_after(None, ["a"], 0), rollback(2), undo("a", 3)], location)


# Open children of a run that is reopened


def a_child(state: RunState, reason: str = "", **options: Any) -> Run:
    error = rules.cancellation(reason) if reason else None
    return replace(RUN, id="call", state=state, parent_id="run", error=error, **options)


OPEN = [step("a", 1), step("b", 2), child("call", 0, 1)]


def test_the_end_that_an_ended_run_was_not_told_arrives_now() -> None:
    ended = a_child(RunState.SUCCEEDED, result="7", finished_at=5, parent_location="call")
    (end,) = rewind(OPEN, "b", call=ended).unread
    assert (end.name, end.payload, end.at) == ("call", "7", 5)


def test_a_child_that_is_alive_is_awaited_again() -> None:
    assert rewind(OPEN, "b", call=a_child(RunState.PENDING)).attached == {"call": "call"}


def test_the_children_of_a_run_that_had_not_ended_are_left_alone() -> None:
    run = replace(RUN, state=RunState.SUSPENDED)
    for state in (RunState.PENDING, RunState.SUCCEEDED):
        revised = rewind(OPEN, "b", run, call=a_child(state))
        assert (revised.attached, revised.unread, revised.cancelled) == ({}, (), ())


def test_a_child_that_ended_with_the_run_is_started_anew_but_not_one_that_was_cancelled_before() -> None:
    closed = rewind(OPEN, "b", call=a_child(RunState.CANCELLED, rules.CLOSING.reason))
    cancelled = rewind(OPEN, "b", call=a_child(RunState.CANCELLED, "enough"))
    assert ("call" in closed.dropped, closed.cancelled, closed.unread) == (True, ("call",), ())
    assert ("call" in cancelled.dropped, len(cancelled.unread)) == (False, 1)


def test_a_child_that_is_no_more_is_started_anew() -> None:
    assert "call" in rewind(OPEN, "b").dropped


# Recovering


def test_a_recovery_drops_what_failed_and_what_followed_from_it() -> None:
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


def cancel(location: str, position: int, since: int, ref: str | None = None) -> Entry:
    return step(location, position, since, kind=EntryKind.CANCEL, result=None, ref=ref)


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


def test_a_recovery_drops_what_a_join_caused_that_told_of_the_failure_late() -> None:
    entries = [
        failed("outer/x/inner/a/one", 1, 0),
        step("outer/x/inner/b/one", 3, 0),
        step("outer/y/kept", 2, 0),
        step("outer/y/more", 4, 2),
        step("outer/y/cleanup", 5, 3),
    ]
    dropped = set(recover(entries, "outer/x/inner/a/one").dropped)
    assert dropped == {"outer/x/inner/a/one", "outer/y/cleanup"}


CANCELLED = rules.cancellation(rules.BY_PARENT.reason)


def test_a_child_that_was_cancelled_because_of_the_failure_is_started_anew() -> None:
    entries = [
        failed("join/x/one", 1, 0),
        child("join/y/call", 0, 0, ref="call"),
        cancel("join/y/cancel:call", 2, 1, ref="call"),
    ]
    for state in (RunState.CANCELLED, RunState.ROLLING_BACK):
        run = replace(a_child(state, rules.BY_PARENT.reason), rollback=RunState.CANCELLED)
        revised = recover(entries, "join/x/one", children={"call": run})
        assert set(revised.dropped) == {entry.location for entry in entries}
        assert (revised.cancelled, revised.unread, revised.attached) == (("call",), (), {})


def test_a_child_that_had_ended_by_itself_before_the_cancel_keeps_its_end() -> None:
    entries = [
        failed("join/x/one", 1, 0),
        child("join/y/call", 0, 0, ref="call"),
        cancel("join/y/cancel:call", 2, 1, ref="call"),
    ]
    done = a_child(RunState.SUCCEEDED, result="7", finished_at=5)
    revised = recover(entries, "join/x/one", children={"call": done})
    assert (set(revised.dropped), revised.cancelled) == ({"join/x/one", "join/y/cancel:call"}, ())
    assert [arrival.payload for arrival in revised.unread] == ["7"]


def test_children_of_a_map_that_the_failure_had_cancelled_are_started_anew_and_no_others() -> None:
    entries = [
        child("+1/all#2/0", 1, 0, ref="done"),
        child("+1/all#2/1", 0, 0, ref="cut off"),
        child("+1/all/0", 0, 0, ref="cancelled before"),
        cancel("+1/cancel:all", 2, 1),
        failed("+2/one", 3, 0),
        cancel("+1/cancel:all%232", 4, 3),
    ]
    cut_off = a_child(RunState.CANCELLED, rules.BY_PARENT.reason)
    children = {"cut off": cut_off, "cancelled before": cut_off}
    revised = recover(entries, "+2/one", children=children)
    assert set(revised.dropped) == {"+1/all#2/1", "+2/one", "+1/cancel:all%232"}
    assert revised.cancelled == ("cut off",)


def test_what_came_of_the_end_of_a_child_that_the_failure_had_cancelled_goes_with_it() -> None:
    entries = [
        failed("+1/one", 1, 0),
        cancel("+2/cancel:call", 2, 1, ref="call"),
        child("+2/call", 3, 0, ref="call", state=EntryState.FAILED, error=CANCELLED, result=None),
        step("+2/mourn", 4, 3),
        step("+3/beside", 5, 0),
    ]
    revised = recover(entries, "+1/one")
    assert set(revised.dropped) == {"+1/one", "+2/cancel:call", "+2/call", "+2/mourn"}
    assert (revised.cancelled, revised.unread) == (("call",), ())


def test_a_rewind_starts_anew_what_was_cancelled_after_it() -> None:
    ended = {"state": EntryState.FAILED, "error": CANCELLED, "result": None}
    entries = [
        child("a", 0, 0),
        child("b", 4, 0, **ended),
        child("c", 5, 0, **ended),
        cancel("cancel:c", 1, 0, ref="c"),
        step("~timer", 2, 0, kind=EntryKind.TIMER),
        cancel("cancel:a", 3, 2, ref="a"),
        cancel("cancel:b", 3, 2, ref="b"),
    ]
    revised = rewind(entries, "~timer", a=a_child(RunState.CANCELLED, rules.BY_PARENT.reason))
    assert set(revised.dropped) == {"~timer", "cancel:a", "cancel:b", "a", "b"}
    assert set(revised.cancelled) == {"a", "b"}
    assert [arrival.name for arrival in revised.unread] == ["c"]


def test_a_failure_that_was_caught_and_did_no_harm_stays() -> None:
    entries = [failed("optional", 1), failed("b", 2)]
    assert recover(entries, "b").dropped == ("b",)


def test_causes_count_as_well() -> None:
    cause = ErrorRecord(type="StepFailed", message="", locations=("a",))
    run = replace(RUN, error=ErrorRecord(type="ValueError", message="", cause=cause))
    assert revision.recover(run, [failed("a", 1)], {}, NOW).dropped == ("a",)


def test_a_run_whose_own_code_raised_keeps_everything() -> None:
    assert recover([step("a", 1)]) == Revision()


def test_a_wait_that_timed_out_is_waited_for_again_from_now_on() -> None:
    late = step("receive", 2, 1, kind=EntryKind.MESSAGE, state=EntryState.TIMED_OUT, result=None)
    revised = recover([step("a", 1), late, step("beside", 3, 0)], "receive")
    assert revised.dropped == ("receive",)
    assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]


def test_what_failed_is_tried_again_from_now_on_so_that_a_time_out_around_it_has_its_full_time() -> None:
    revised = recover([step("a", 1), step("b", 2, 0), failed("c", 3, 1)], "c")
    assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]
    assert not revised.is_from_start
    assert recover([failed("a", 1, 0), step("b", 2, 0)], "a").is_from_start


def test_a_child_that_is_started_anew_is_awaited_from_now_on() -> None:
    closed = a_child(RunState.CANCELLED, rules.CLOSING.reason)
    revised = recover(OPEN, children={"call": closed})
    assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]


def test_a_recovery_drops_what_was_undone_and_all_that_came_after_it() -> None:
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


def test_a_recovery_goes_back_to_a_failure_before_what_was_undone_as_well() -> None:
    entries = [failed("join/x/a", 1, 0), step("join/y/kept", 2, 0), step("join/y/b", 3, 2), rollback(4)]
    undone = [*entries, undo("join/y/b", 5)]
    assert set(recover(undone, "join/x/a").dropped) == {"join/x/a", "join/y/b", "~rollback", "~undo/join/y/b"}


def test_a_child_started_before_what_was_undone_has_only_its_end_forgotten_unless_that_is_the_failure() -> None:
    entries = [
        child("good", 3, 0),
        child("bad", 4, 0, state=EntryState.FAILED, error=ErrorRecord(type="E", message=""), result=None),
        step("a", 1, has_undo=True),
        rollback(5),
        undo("a", 6),
    ]
    revised = recover(entries, "bad")
    assert (set(revised.dropped), revised.cancelled) == ({"a", "bad", "~rollback", "~undo/a"}, ("bad",))
    assert [arrival.name for arrival in revised.unread] == ["good"]


def test_a_loop_comes_again_to_what_was_undone_in_it() -> None:
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


def test_what_was_undone_beside_a_loop_that_has_pruned_what_it_did_then_cannot_be_done_again() -> None:
    entries = [
        step("both/one/a", 5, has_undo=True),
        mark("both/two/loop/~11", 20, PRUNED),
        failed("c", 23),
        rollback(24),
        undo("both/one/a", 26),
    ]
    with pytest.raises(InvalidRequest, match="at 'both/one/a' the loop 'both/two/loop' was in iterations"):
        recover(entries, "c")


def test_a_pruned_loop_that_came_after_what_was_undone_begins_anew() -> None:
    entries = [step("a", 5, has_undo=True), mark("loop/~11", 20, PRUNED), failed("c", 23), rollback(24), undo("a", 26)]
    assert set(recover(entries, "c").dropped) == {entry.location for entry in entries}


def test_what_was_undone_in_pruned_iterations_cannot_be_done_again() -> None:
    entries = [
        step("loop/~1/x", 1, has_undo=True),
        mark("loop/~11", 20, PRUNED),
        failed("loop/~11/y", 21),
        rollback(22),
        undo("loop/~1/x", 23),
    ]
    with pytest.raises(InvalidRequest, match="iteration 1 of the loop 'loop' has to be done again"):
        recover(entries, "loop/~11/y")


def test_a_run_that_is_blocked_while_it_rolls_back_keeps_what_it_has_undone() -> None:
    run = replace(RUN, state=RunState.BLOCKED, rollback=RunState.FAILED)
    entries = [step("a", 1), step("b", 2), rollback(3), undo("b", 4), undo("a", 5, EntryState.FAILED)]
    assert revision.recover(run, entries, {}, NOW) == Revision(dropped=("~undo/a",))


@pytest.mark.parametrize("state", sorted(set(RunState) - {RunState.FAILED, RunState.CANCELLED, RunState.BLOCKED}))
def test_only_what_went_wrong_is_recovered(state: RunState) -> None:
    with pytest.raises(InvalidRequest, match=f"is {state.value}; only a run that failed"):
        revision.recover(replace(RUN, state=state), [], {}, NOW)


# Rounds


def rounds_of(revised: Revision) -> dict[str, int]:
    (entry,) = [entry for entry in revised.reset if entry.location == ROUNDS_LOCATION]
    assert (entry.kind, entry.position, entry.is_settled) == (EntryKind.ROUNDS, 0, False)
    return rounds_in(entry)


UNDONE = [step("a", 1, has_undo=True), step("b", 2, has_undo=True), failed("c", 3), rollback(4)]


def test_completed_undos_are_counted_when_they_are_dropped() -> None:
    entries = [*UNDONE, undo("b", 5), undo("a", 6)]
    assert rounds_of(recover(entries, "c")) == {"a": 1, "b": 1}
    assert rounds_of(rewind(entries, "c")) == {"a": 1, "b": 1}


def test_undos_of_earlier_rounds_are_counted_with_them() -> None:
    before = rounds_after(None, ["a", "loop/~1/x"], 0)
    revised = recover([*UNDONE, undo("b", 5), undo("a", 6), before], "c")
    assert rounds_of(revised) == {"a": 2, "b": 1, "loop/~1/x": 1}
    assert ROUNDS_LOCATION not in revised.dropped


def test_an_undo_that_is_not_done_is_not_counted() -> None:
    entries = [*UNDONE, undo("b", 5), undo("a", 0, EntryState.RETRYING)]
    assert rounds_of(rewind(entries, "c")) == {"b": 1}


def test_where_nothing_was_undone_rounds_stay_as_they_are() -> None:
    before = rounds_after(None, ["a"], 0)
    for revised in (recover([step("a", 1), failed("b", 2), before], "b"), rewind([step("a", 1), before], "a")):
        assert ROUNDS_LOCATION not in {*revised.dropped, *(entry.location for entry in revised.reset)}


def test_a_run_that_goes_on_undoing_counts_nothing_yet() -> None:
    run = replace(RUN, state=RunState.BLOCKED, rollback=RunState.FAILED)
    assert revision.recover(run, [*UNDONE, undo("b", 5), undo("a", 6, EntryState.FAILED)], {}, NOW).reset == ()


def test_a_fork_copies_the_rounds() -> None:
    rounds = rounds_after(None, ["b"], 0)
    assert fork([step("a", 1), step("b", 2), rounds], "b")[1] == ["a", ROUNDS_LOCATION]


# Forking


def test_a_fork_copies_what_is_settled_before_the_location() -> None:
    entries = [step("a", 1), step("b", 2), step("retrying", 0, 1, state=EntryState.RETRYING), step("c", 3)]
    assert fork(entries, "c")[1] == ["a", "b"]


def test_a_fork_at_a_child_starts_another_one() -> None:
    entries = [step("a", 1), child("call", 2, 1), step("b", 3)]
    assert fork(entries, "call")[1] == ["a"]
    assert fork(entries, "b")[1] == ["a", "call"]


def test_a_fork_cannot_share_an_open_child() -> None:
    with pytest.raises(InvalidRequest, match="the children 'call' are open"):
        fork([step("a", 1), child("call", 3, 1), step("b", 2, 1)], "b")


def test_a_fork_cannot_rely_on_what_was_undone() -> None:
    entries = [step("a", 1, has_undo=True), step("b", 2), rollback(3), undo("a", 4)]
    with pytest.raises(InvalidRequest, match="'a' was undone"):
        fork(entries, "b")
    assert fork(entries, "a")[1] == []


def test_a_fork_repeats_the_chance_of_its_first_ancestor() -> None:
    run, _ = fork([step("a", 1)], "a")
    assert run.options.seed == "run"


@pytest.mark.parametrize("kind", [EntryKind.TIMER, EntryKind.SEND])
def test_what_has_no_result_cannot_be_patched(kind: EntryKind) -> None:
    with pytest.raises(InvalidRequest, match=f"'a' is a {kind.value} in state done; it has no result to patch"):
        fork([step("a", 1, kind=kind), step("b", 2)], "b", a="1")


def test_a_failure_can_be_patched_into_a_success() -> None:
    request = Fork(id="f", run_id="fork", location="b", patch={"a": "7"})
    _, (entry,) = revision.fork(RUN, [failed("a", 1), step("b", 2)], request, NOW)
    assert (entry.state, entry.result, entry.error) == (EntryState.DONE, "7", None)


# Holders


def test_a_held_run_is_busy_unless_forced() -> None:
    run = replace(RUN, state=RunState.RUNNING, worker="w1")
    with pytest.raises(RunBusy, match="worker w1 holds run run"):
        revision.check_free(run, is_forced=False)
    revision.check_free(run, is_forced=True)
