"""Revisions of flows: the snapshot that a flow goes back to, and what becomes of everything after it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import revision, rules
from holdfast.core.commands import Fork
from holdfast.core.entries import ADOPTED_LOCATION, EVENTS_LOCATION, FLOW_LOCATION, record_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.flow_revision import REMOVED, Revision, adopted_in, reopened_in
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Run, WaitKind
from holdfast.core.revision import Recovery
from holdfast.core.states import RunState
from tests.unit.core.a_history import NOW, RUN, a_child, cancel, child, failed, failed_at, lost, recover, rewind, step

VERSION = "v" * 64


def snapshot(turn: int, position: int = 0, *, since: int, **options: Any) -> Entry:
    """Build the copy of a snapshot, or without a position the newest one."""
    fields: dict[str, Any] = {
        "location": f"@turn/{turn}" if position else FLOW_LOCATION,
        "kind": EntryKind.SNAPSHOT,
        "state": EntryState.DONE if position else EntryState.STARTED,
        "position": position,
        "attempts": turn,
        "result": f'{{"turn":{turn}}}',
        "finished_at": 10 * turn,
        "ref": VERSION,
        "since": since,
    }
    return Entry(**fields | options)


def message(location: str, position: int, since: int) -> Entry:
    arrival = Arrival(number=9, kind=WaitKind.MESSAGE, name=location, at=position, payload="1", ref=f"m{position}")
    return step(location, position, since, kind=EntryKind.MESSAGE, result=record_of([arrival]))


def event(location: str, position: int, since: int, number: int) -> Entry:
    arrival = Arrival(number=9, kind=WaitKind.EVENT, name="paid", at=position, payload="1", ref=str(number))
    return step(location, position, since, kind=EntryKind.EVENT, result=record_of([arrival]))


def reset_of(found: Revision, location: str = FLOW_LOCATION) -> Entry:
    return next(entry for entry in found.reset if entry.location == location)


def fork(entries: list[Entry], location: str, text: str | None = None) -> tuple[Run, tuple[Entry, ...]]:
    patch = {} if text is None else {FLOW_LOCATION: text}
    request = Fork(id="f", run_id="run", new_run_id="new", location=location, patch=patch)
    return revision.fork(RUN, entries, request, NOW)


FLOW = [
    snapshot(1, 1, since=0),
    message("@2/receive#1", 2, 0),
    step("@3/send#2", 3, 2, kind=EntryKind.SEND),
    snapshot(2, 4, since=2),
    message("@4/receive#3", 5, 2),
    message("@5/receive#4", 6, 5),
    snapshot(3, 7, since=6),
    snapshot(3, since=6),
]
"""A flow that received one message in its second turn, and two in its third."""


# Rewind


def test_a_rewind_to_a_snapshot_restores_its_text_and_version() -> None:
    restored = reset_of(rewind(FLOW, "@turn/2"))

    assert restored == snapshot(2, since=2, retry_at=NOW)


def test_a_rewind_drops_everything_after_the_snapshot() -> None:
    found = rewind(FLOW, "@turn/2")

    assert set(found.dropped) == {"@4/receive#3", "@5/receive#4", "@turn/3"}
    assert not found.is_from_start


def test_a_rewind_makes_messages_unread_in_their_order() -> None:
    found = rewind(FLOW, "@turn/1")

    assert [arrival.ref for arrival in found.unread] == ["m2", "m5", "m6"]


def test_a_fact_means_the_newest_snapshot_that_does_not_include_it() -> None:
    assert reset_of(rewind(FLOW, "@5/receive#4")).attempts == 2
    assert reset_of(rewind(FLOW, "@4/receive#3")).attempts == 2
    assert reset_of(rewind(FLOW, "@2/receive#1")).attempts == 1


def test_a_request_means_the_newest_snapshot_before_it() -> None:
    assert reset_of(rewind(FLOW, "@3/send#2")).attempts == 1


def test_a_request_of_the_first_turn_means_the_beginning_while_its_snapshot_is_kept() -> None:
    entries = [step("@1/send#1", 1, 0, kind=EntryKind.SEND), snapshot(1, 2, since=0), snapshot(1, since=0)]

    found = rewind(entries, "@1/send#1")

    assert found.is_from_start
    assert set(found.dropped) == {"@1/send#1", "@turn/1"}
    restored = reset_of(found)
    assert (restored.result, restored.attempts, restored.ref) == (None, 0, VERSION)


def test_a_rewind_to_before_the_kept_snapshots_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"before '@2/receive#1' is not kept any more; the flow keeps '@turn/2'"):
        rewind([entry for entry in FLOW if entry.location != "@turn/1"], "@2/receive#1")


def test_a_rewind_to_an_unknown_location_lists_those_that_are_kept() -> None:
    with pytest.raises(InvalidRequest, match=r"keeps no entry at '@turn/9'; it has '@turn/1', '@2/receive#1'"):
        rewind(FLOW, "@turn/9")


def test_the_newest_snapshot_may_be_named_itself() -> None:
    late = message("@6/receive#5", 8, 6)

    found = rewind([*FLOW, late], FLOW_LOCATION)

    assert found.dropped == ("@6/receive#5",)
    assert reset_of(found).attempts == 3


def test_a_rewind_cancels_children_that_were_started_after_the_snapshot() -> None:
    entries = [*FLOW, child("@4/call#9", 0, 5), child("@4/start#8", 8, 5)]

    found = rewind(entries, "@turn/2")

    assert set(found.cancelled) == {"@4/call#9", "@4/start#8"}
    assert {"@4/call#9", "@4/start#8"} <= set(found.dropped)


def test_the_end_of_a_child_that_was_started_before_is_unread_again() -> None:
    entries = [*FLOW, child("call", 6, 2)]

    found = rewind(entries, "@turn/2")

    assert found.cancelled == ()
    assert reset_of(found, "call").state is EntryState.STARTED
    assert [(one.kind, one.name) for one in found.unread] == [
        (WaitKind.MESSAGE, "@4/receive#3"),
        (WaitKind.MESSAGE, "@5/receive#4"),
        (WaitKind.CHILD, "call"),
    ]


def test_a_child_whose_cancel_is_dropped_ends_as_it_did() -> None:
    """The program has the child in its snapshot and does not start it again."""
    cancelled = rules.cancellation(rules.BY_PARENT.reason)
    end = child("call", 9, 2, state=EntryState.FAILED, result=None, error=cancelled)
    found = rewind([*FLOW, cancel("@5/cancel#7", 8, 6, "call"), end], "@turn/2")

    assert found.cancelled == ()
    assert found.unread[-1].state is RunState.CANCELLED


def test_an_open_child_that_no_longer_exists_gets_an_end() -> None:
    (end,) = rewind([*FLOW, child("call", 0, 2)], "@turn/3").unread

    assert (end.name, end.error) == ("call", rules.cancellation(REMOVED.reason))


def test_an_open_child_of_an_ended_flow_reports_again() -> None:
    entries = [*FLOW, child("call", 0, 2)]

    alive = rewind(entries, "@turn/3", call=a_child(RunState.RUNNING))
    done = rewind(entries, "@turn/3", call=a_child(RunState.SUCCEEDED, result="7"))

    assert (alive.attached, alive.unread) == ({"call": "call"}, ())
    assert [one.payload for one in done.unread] == ["7"]


def test_a_rewind_sets_event_cursors_back() -> None:
    cursors = Entry(location=EVENTS_LOCATION, kind=EntryKind.EVENT, state=EntryState.STARTED, result='{"paid":8}')
    entries = [*FLOW, event("@6/wait#6", 8, 6, number=8), cursors]

    assert reset_of(rewind(entries, "@turn/2"), EVENTS_LOCATION).result == '{"paid":7}'


def test_requests_of_a_later_turn_without_facts_are_dropped() -> None:
    """A turn that used up its budget of instructions goes on without a fact."""
    entries = [
        snapshot(1, 1, since=0),
        step("@2/send#1", 2, 1, kind=EntryKind.SEND),
        child("@3/call#2", 0, 1),
        snapshot(2, 3, since=0),
        snapshot(2, since=0),
    ]

    found = rewind(entries, "@turn/1")

    assert set(found.dropped) == {"@2/send#1", "@3/call#2", "@turn/2"}
    assert found.cancelled == ("@3/call#2",)


# Recover


LATE = [message("@6/receive#5", 8, 6), step("@7/send#6", 9, 8, kind=EntryKind.SEND)]
"""A turn that failed."""


def test_a_recovery_takes_back_the_turn_that_failed() -> None:
    found = recover([*FLOW, *LATE])

    assert set(found.dropped) == {"@6/receive#5", "@7/send#6"}
    assert [arrival.ref for arrival in found.unread] == ["m8"]
    assert reset_of(found) == snapshot(3, since=6, retry_at=NOW)


def test_the_time_of_a_blocked_flow_goes_on() -> None:
    run = replace(RUN, state=RunState.BLOCKED)

    found = Recovery(run, [*FLOW, *LATE]).revision({}, (), NOW)

    assert [arrival.ref for arrival in found.unread] == ["m8"]
    assert found.reset == ()


def test_a_recovery_reopens_the_failed_child_that_the_turn_awaited() -> None:
    entries = [*FLOW, failed("call", 8, 2, kind=EntryKind.CHILD, ref="call")]
    ended = {"call": a_child(RunState.FAILED)}

    assert lost(entries, "call", children=ended) == {"call": "call"}
    found = recover(entries, "call", children={"call": a_child(RunState.PENDING)})
    assert found.attached == {"call": "call"}
    assert found.unread == ()
    assert reset_of(found, "call").state is EntryState.STARTED
    assert adopted_in(next((e for e in found.reset if e.location == ADOPTED_LOCATION), None)) == {}


def test_a_recovery_names_children_whose_failure_the_snapshot_has() -> None:
    entries = [*FLOW, failed("call", 5, 2, kind=EntryKind.CHILD, ref="call")]
    ended = {"call": a_child(RunState.FAILED)}

    assert lost(entries, "call", children=ended) == {"call": "call"}
    found = recover(entries, "call", children={"call": a_child(RunState.PENDING)})
    assert found.attached == {"call": "call"}
    assert reset_of(found, "call").state is EntryState.STARTED
    assert reopened_in(reset_of(found)) == ("call",)


def test_a_second_recovery_from_the_same_snapshot_names_them_again() -> None:
    entries = [*FLOW, failed("call", 5, 2, kind=EntryKind.CHILD, ref="call")]
    first = recover(entries, "call", children={"call": a_child(RunState.PENDING)})
    again = [*FLOW[:-1], reset_of(first), failed("call", 8, 2, kind=EntryKind.CHILD, ref="call")]

    second = recover(again, "call", children={"call": a_child(RunState.PENDING)})

    assert reopened_in(reset_of(second)) == ("call",)


def test_a_failed_child_that_the_code_caught_is_taken_as_it_is() -> None:
    entries = [*FLOW, failed("call", 8, 2, kind=EntryKind.CHILD, ref="call")]
    ended = {"call": a_child(RunState.FAILED)}

    assert lost(entries, children=ended) == {}
    (end,) = recover(entries, children=ended).unread
    assert (end.name, end.state) == ("call", RunState.FAILED)


def test_a_succeeded_child_is_taken_as_it_is() -> None:
    (end,) = recover([*FLOW, child("call", 8, 2)], "call").unread

    assert (end.name, end.payload) == ("call", "1")


def test_a_child_that_a_person_cancelled_stays_cancelled() -> None:
    entries = [*FLOW, failed("call", 8, 2, kind=EntryKind.CHILD, ref="call")]
    ended = {"call": a_child(RunState.CANCELLED, "by hand")}

    assert lost(entries, "call", children=ended, willed=["call"]) == {}


def test_a_child_that_was_cancelled_with_its_parent_is_reopened() -> None:
    ended = {"call": a_child(RunState.CANCELLED, rules.CLOSING.reason)}

    assert lost([*FLOW, child("call", 0, 2, attempts=1)], children=ended) == {"call": "call"}


def test_children_that_the_failed_turn_started_are_taken_again() -> None:
    """No twins: the snapshot does not know them, so the flow is told."""
    entries = [*FLOW, *LATE, child("call", 0, 8)]

    found = recover(entries, children={"call": a_child(RunState.RUNNING)})

    assert adopted_in(reset_of(found, ADOPTED_LOCATION)) == {"call": "call"}
    assert reset_of(found, "call").state is EntryState.RETRYING
    assert found.attached == {"call": "call"}
    assert found.cancelled == ()


def test_children_are_taken_again_also_after_a_second_failure() -> None:
    entries = [*FLOW, *LATE, child("call", 0, 8)]
    alive = {"call": a_child(RunState.RUNNING)}
    first = recover(entries, children=alive)
    changed = {entry.location: entry for entry in first.reset}
    again = [e for e in entries if e.location not in {*first.dropped, *changed}] + [*changed.values()]

    assert adopted_in(reset_of(recover(again, children=alive), ADOPTED_LOCATION)) == {"call": "call"}


def test_a_rewind_forgets_children_that_were_to_be_taken_again() -> None:
    adopted = Entry(location=ADOPTED_LOCATION, kind=EntryKind.SNAPSHOT, state=EntryState.STARTED, result='{"call":"x"}')

    found = rewind([*FLOW, child("call", 0, 8), adopted], "@turn/3")

    assert set(found.dropped) == {"call", ADOPTED_LOCATION}
    assert found.cancelled == ("call",)


def test_a_flow_that_failed_in_its_first_turn_begins_again_without_twins() -> None:
    entries = [message("@1/receive#1", 1, 0), child("@2/start#2", 0, 1, ref="call")]

    found = Recovery(failed_at(), entries).revision({"call": a_child(RunState.RUNNING)}, (), NOW)

    assert found.dropped == ("@1/receive#1",)
    assert [arrival.ref for arrival in found.unread] == ["m1"]
    assert adopted_in(reset_of(found, ADOPTED_LOCATION)) == {"@2/start#2": "call"}


# Fork


def test_a_fork_has_the_snapshot_and_what_it_includes() -> None:
    run, history = fork(FLOW, "@turn/2")

    assert [entry.location for entry in history] == ["@turn/1", "@2/receive#1", "@3/send#2", "@turn/2", FLOW_LOCATION]
    assert history[-1] == snapshot(2, since=2, retry_at=NOW)
    assert (run.id, run.token, run.created_at) == ("new", 1, NOW)


def test_a_fork_may_replace_the_snapshot() -> None:
    _, history = fork(FLOW, "@turn/2", text='{"turn":"edited"}')

    assert history[-1].result == '{"turn":"edited"}'


def test_a_fork_of_a_flow_patches_only_its_snapshot() -> None:
    request = Fork(id="f", run_id="run", new_run_id="new", location="@turn/2", patch={"@2/receive#1": "2"})

    with pytest.raises(InvalidRequest, match="the state of a flow is its snapshot, at '~flow'"):
        revision.fork(RUN, FLOW, request, NOW)


@pytest.mark.parametrize("position", [0, 5])
def test_a_fork_is_refused_while_a_child_is_open(position: int) -> None:
    with pytest.raises(InvalidRequest, match=r"at '@turn/2' the children 'call' are open"):
        fork([*FLOW, child("call", position, 2)], "@turn/2")


def test_a_fork_may_have_children_that_ended_before_or_began_later() -> None:
    _, history = fork([*FLOW, child("early", 2, 0), child("late", 0, 6)], "@turn/2")

    assert {entry.ref for entry in history if entry.kind is EntryKind.CHILD} == {"early"}
