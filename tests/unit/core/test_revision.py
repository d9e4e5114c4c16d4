"""Revisions: the history after a rewind, a recovery or a fork, decided without a store."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import revision, rules
from holdfast.core.commands import Fork
from holdfast.core.entries import EVENTS_LOCATION, PRUNED, ROUNDS_LOCATION, record_of, rounds_after, rounds_in
from holdfast.core.errors import InvalidRequest, RunBusy
from holdfast.core.flow_revision import Revision
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Run, WaitKind
from holdfast.core.revision import Recovery
from holdfast.core.states import RunState
from tests.unit.core.a_history import (
    CANCELLED,
    NOW,
    OPEN,
    RUN,
    a_child,
    cancel,
    child,
    failed,
    mark,
    recover,
    rewind,
    rollback,
    step,
    undo,
)


def fork(entries: Sequence[Entry], location: str, **patch: str) -> tuple[Run, list[str]]:
    request = Fork(run_id="run", id="f", new_run_id="fork", location=location, patch=patch)
    run, copied = revision.fork(RUN, entries, request, NOW)
    return run, [entry.location for entry in copied]


# Rewinding


def test_a_rewind_drops_what_was_settled_later_and_what_was_requested_later() -> None:
    entries = [step("a", 1), step("b", 2), step("c", 3, 1), step("open", 0, 1), step("later", 0, 2)]
    assert set(rewind(entries, "b").dropped) == {"b", "c", "later"}


def test_a_rewind_to_an_unsettled_operation_drops_what_came_after_its_request() -> None:
    entries = [step("a", 1), step("open", 0, 1), step("beside", 0, 1), step("b", 2, 1)]
    assert set(rewind(entries, "open").dropped) == {"open", "b"}


def test_a_rewind_into_a_loop_drops_the_whole_loop() -> None:
    entries = [step("a", 1), step("loop/~1/x", 2), step("loop/~2/x", 3), mark("loop", 4), step("b", 5)]
    assert set(rewind(entries, "loop/~2/x").dropped) == {"loop/~1/x", "loop/~2/x", "loop", "b"}


def test_a_rewind_into_a_pruned_loop_is_refused_and_one_to_before_it_is_not() -> None:
    entries = [step("a", 1), mark("loop/~11", 20, PRUNED), step("loop/~11/x", 21), step("b", 30)]
    with pytest.raises(InvalidRequest, match="pruned"):
        rewind(entries, "loop/~11/x")
    assert "a" in rewind(entries, "a").dropped
    assert rewind(entries, "b").dropped == ("b",)


def test_a_rewind_beside_a_loop_that_pruned_its_iterations_is_refused() -> None:
    entries = [step("both/one/a", 5), mark("both/two/loop/~11", 20, PRUNED), step("both/one/b", 25, 5)]
    with pytest.raises(InvalidRequest, match="in iterations that are now pruned"):
        rewind(entries, "both/one/a")
    assert rewind(entries, "both/one/b").dropped == ("both/one/b",)


def test_a_rewind_goes_back_to_before_an_undone_step() -> None:
    entries = [step("a", 1), step("b", 2, has_undo=True), step("c", 3), rollback(4), undo("b", 5)]
    assert set(rewind(entries, "c").dropped) == {"b", "c", "~rollback", "~undo/b"}


def test_a_rewind_drops_an_unfinished_undo_and_keeps_its_step() -> None:
    entries = [step("a", 1, has_undo=True), step("b", 2), rollback(3), undo("a", 0, EntryState.RETRYING)]
    assert set(rewind(entries, "b").dropped) == {"b", "~rollback", "~undo/a"}


def test_after_a_rewind_time_continues_after_the_last_fact() -> None:
    entries = [step("a", 1), step("send:x", 2, kind=EntryKind.SEND), step("b", 3)]
    revised = rewind(entries, "b")
    assert [(entry.location, entry.retry_at) for entry in revised.reset] == [("a", NOW)]
    assert not revised.is_from_start
    assert rewind(entries, "a").is_from_start
    assert rewind(entries, "a").reset == ()


def test_a_child_at_the_rewound_location_is_started_again() -> None:
    entries = [step("a", 1), child("call", 3, 1), step("b", 2, 1)]
    revised = rewind(entries, "call")
    assert (revised.dropped, revised.cancelled, revised.unread) == (("call",), ("call",), ())


def test_a_child_that_was_started_before_loses_only_its_recorded_end() -> None:
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


def test_an_event_that_is_unread_again_counts_as_not_received() -> None:
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
def test_only_operations_of_the_code_can_be_rewound_to(location: str) -> None:
    cursors = Entry(location=EVENTS_LOCATION, kind=EntryKind.EVENT, state=EntryState.STARTED, result="{}")
    with pytest.raises(InvalidRequest, match=rf"no entry at '{location}'; it has 'a'$"):
        rewind([step("a", 1), cursors, rounds_after(None, ["a"], 0), rollback(2), undo("a", 3)], location)


# Open children of a reopened run


def test_an_end_that_the_ended_run_did_not_receive_arrives_now() -> None:
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


def test_a_child_that_ended_with_the_run_is_started_again_but_not_one_that_was_cancelled_before() -> None:
    closed = rewind(OPEN, "b", call=a_child(RunState.CANCELLED, rules.CLOSING.reason))
    cancelled = rewind(OPEN, "b", call=a_child(RunState.CANCELLED, "enough"))
    assert ("call" in closed.dropped, closed.cancelled, closed.unread) == (True, ("call",), ())
    assert ("call" in cancelled.dropped, len(cancelled.unread)) == (False, 1)


def test_a_pruned_child_is_started_again_after_a_rewind() -> None:
    assert "call" in rewind(OPEN, "b").dropped


def test_a_pruned_child_with_a_recorded_end_is_not_started_again_after_a_rewind() -> None:
    run = replace(RUN, state=RunState.SUSPENDED)
    assert revision.rewind(run, OPEN, "b", {}, NOW, reported={"call"}).dropped == ("b",)


def test_a_rewind_starts_children_again_that_were_cancelled_after_the_location() -> None:
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


def test_an_unfinished_undo_is_not_counted() -> None:
    entries = [*UNDONE, undo("b", 5), undo("a", 0, EntryState.RETRYING)]
    assert rounds_of(rewind(entries, "c")) == {"b": 1}


def test_without_undos_the_rounds_stay_unchanged() -> None:
    before = rounds_after(None, ["a"], 0)
    for revised in (recover([step("a", 1), failed("b", 2), before], "b"), rewind([step("a", 1), before], "a")):
        assert ROUNDS_LOCATION not in {*revised.dropped, *(entry.location for entry in revised.reset)}


def test_a_run_that_continues_its_rollback_counts_nothing_yet() -> None:
    run = replace(RUN, state=RunState.BLOCKED, rollback=RunState.FAILED)
    entries = [*UNDONE, undo("b", 5), undo("a", 6, EntryState.FAILED)]
    assert Recovery(run, entries).revision({}, (), NOW).reset == ()


def test_a_fork_copies_the_rounds() -> None:
    rounds = rounds_after(None, ["b"], 0)
    assert fork([step("a", 1), step("b", 2), rounds], "b")[1] == ["a", ROUNDS_LOCATION]


# Forking


def test_a_fork_copies_what_is_settled_before_the_location() -> None:
    entries = [step("a", 1), step("b", 2), step("retrying", 0, 1, state=EntryState.RETRYING), step("c", 3)]
    assert fork(entries, "c")[1] == ["a", "b"]


def test_a_fork_at_a_child_starts_another_child() -> None:
    entries = [step("a", 1), child("call", 2, 1), step("b", 3)]
    assert fork(entries, "call")[1] == ["a"]
    assert fork(entries, "b")[1] == ["a", "call"]


def test_a_fork_cannot_share_an_open_child() -> None:
    with pytest.raises(InvalidRequest, match="the children 'call' are open"):
        fork([step("a", 1), child("call", 3, 1), step("b", 2, 1)], "b")


def test_a_fork_cannot_depend_on_an_undone_step() -> None:
    entries = [step("a", 1, has_undo=True), step("b", 2), rollback(3), undo("a", 4)]
    with pytest.raises(InvalidRequest, match="'a' before 'b' was undone"):
        fork(entries, "b")
    assert fork(entries, "a")[1] == []


def test_a_fork_has_the_random_seed_of_its_first_ancestor() -> None:
    run, _ = fork([step("a", 1)], "a")
    assert run.options.seed == "run"


@pytest.mark.parametrize("kind", [EntryKind.TIMER, EntryKind.SEND])
def test_an_operation_without_a_result_cannot_be_patched(kind: EntryKind) -> None:
    with pytest.raises(InvalidRequest, match=f"'a' is a {kind.value} in state done; it has no result to patch"):
        fork([step("a", 1, kind=kind), step("b", 2)], "b", a="1")


def test_a_failure_can_be_patched_into_a_success() -> None:
    request = Fork(run_id="run", id="f", new_run_id="fork", location="b", patch={"a": "7"})
    _, (entry,) = revision.fork(RUN, [failed("a", 1), step("b", 2)], request, NOW)
    assert (entry.state, entry.result, entry.error) == (EntryState.DONE, "7", None)


# Holders


def test_a_held_run_is_busy_unless_forced() -> None:
    run = replace(RUN, state=RunState.RUNNING, worker="w1")
    with pytest.raises(RunBusy, match="worker w1 holds run run"):
        revision.check_free(run, is_forced=False)
    revision.check_free(run, is_forced=True)
