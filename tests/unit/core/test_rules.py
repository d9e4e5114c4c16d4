"""Rules of control: the effect of a request on a run in each state, decided without a store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Checkpoint, Suspend
from holdfast.core.model import Run, Wait, WaitKind
from holdfast.core.states import ENDS, LIVE, RunState
from holdfast.core.verbs import StopRequest

NOW = 1_000
RUN = Run(id="run", type="t", state=RunState.PENDING, payload="{}", created_at=0, start_at=0, updated_at=0, token=3)


@pytest.mark.parametrize("state", sorted(LIVE - {RunState.PAUSED, RunState.RUNNING}))
def test_a_live_run_without_a_holder_is_paused(state: RunState) -> None:
    after = rules.paused(replace(RUN, state=state, ready_at=5), (), NOW)
    assert after is not None
    assert (after.state, after.ready_at, after.is_pausing) == (RunState.PAUSED, None, False)


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.ROLLING_BACK])
def test_a_held_run_is_only_asked_to_pause(state: RunState) -> None:
    run = replace(RUN, state=state, worker="w", ready_at=5)
    after = rules.paused(run, (), NOW)
    assert after == replace(run, stop=StopRequest.PAUSE, updated_at=NOW)
    assert after is not None
    assert rules.paused(after, (), NOW) is None


@pytest.mark.parametrize("state", sorted({*ENDS, RunState.PAUSED}))
def test_an_ended_or_paused_run_is_not_paused(state: RunState) -> None:
    assert rules.paused(replace(RUN, state=state), (), NOW) is None


def test_paused_time_is_not_counted_as_suspended_time_after_a_resume() -> None:
    after = rules.resumed(replace(RUN, state=RunState.PAUSED, suspended_at=5), (), NOW)
    assert after is not None
    assert (after.state, after.ready_at, after.suspended_at) == (RunState.PENDING, NOW, None)


def test_a_resumed_run_still_waits_for_its_slot() -> None:
    slot = Wait(location=rules.SLOT_LOCATION, kind=WaitKind.SLOT, since=0, names=("g",))
    after = rules.resumed(replace(RUN, state=RunState.PAUSED), (slot,), NOW)
    assert after is not None
    assert after.ready_at is None


@pytest.mark.parametrize("state", sorted(set(RunState) - {RunState.PAUSED}))
def test_only_a_paused_run_is_resumed(state: RunState) -> None:
    assert rules.resumed(replace(RUN, state=state), (), NOW) is None


@pytest.mark.parametrize(
    ("run", "ready_at"),
    [
        (replace(RUN, state=RunState.SUSPENDED), NOW),
        (replace(RUN, state=RunState.SUSPENDED, ready_at=NOW + 5), NOW),
        (replace(RUN, state=RunState.BLOCKED, ready_at=NOW + 5), NOW),
        (replace(RUN, state=RunState.ROLLING_BACK, ready_at=NOW + 5), NOW),
        (replace(RUN, state=RunState.SUSPENDED, ready_at=NOW - 5), None),
        (replace(RUN, state=RunState.PENDING, ready_at=NOW + 5, start_at=NOW + 5), None),
        (replace(RUN, state=RunState.PENDING), None),
        (replace(RUN, state=RunState.BLOCKED), None),
        (replace(RUN, state=RunState.PAUSED), None),
        (replace(RUN, state=RunState.RUNNING, worker="w", ready_at=NOW + 5), None),
        (replace(RUN, state=RunState.FAILED), None),
    ],
    ids=lambda value: f"{value.state}-{value.ready_at}" if isinstance(value, Run) else "",
)
def test_a_wake_makes_a_run_ready_that_would_continue_later(run: Run, ready_at: int | None) -> None:
    after = rules.roused(run, (), NOW)
    assert (after and after.ready_at) == ready_at


@pytest.mark.parametrize("state", sorted(RunState))
def test_a_run_in_any_state_is_reopened_under_a_new_token(state: RunState) -> None:
    run = replace(
        RUN, state=state, worker="w", crashes=3, rollback=RunState.FAILED, stop=StopRequest.PAUSE, finished_at=9
    )
    after = rules.reopened(run, NOW, parent_location="call")
    assert after.parent_location == "call"
    assert (after.state, after.ready_at, after.worker, after.token) == (RunState.PENDING, NOW, None, RUN.token + 1)
    assert (after.crashes, after.rollback, after.is_pausing, after.finished_at) == (0, None, False, None)


def test_a_reopened_run_has_its_full_time_limit() -> None:
    run = replace(RUN, state=RunState.CANCELLED, first_claimed_at=7, suspended_at=8)
    after = rules.reopened(run, NOW, parent_location=None)
    assert (after.start_at, after.first_claimed_at, after.suspended_at) == (NOW, 7, None)
    assert rules.reopened(run, NOW, parent_location=None, is_from_start=True).first_claimed_at is None


def test_a_run_counts_as_suspended_since_its_holder_counts_max_suspend() -> None:
    counted = Wait(location=rules.MAX_SUSPEND_LOCATION, kind=WaitKind.TIME, since=100, deadline=1_100)
    held = replace(RUN, state=RunState.RUNNING, worker="w")

    for waits, since in (((counted,), 100), ((), 150)):
        suspended = rules.advanced(
            held, Checkpoint(run_id=held.id, token=3, seen=0, next=Suspend(), waits=waits), now=150
        )
        assert suspended.suspended_at == since
