"""The light turn of a task behaves exactly like the full one: both are driven alike and compared at each point."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Fatal, Registry, Retry
from holdfast.core.checkpoint import Block, Checkpoint, Finish, Hold, Next, Release, Suspend
from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Entry, EntryKind, EntryState, Lease, Run, RunOptions
from holdfast.core.states import RunState
from holdfast.runner.definition import Task
from holdfast.runner.operation import Raised, Returned, StepCall, TimedOut
from holdfast.runner.run_turn import Standstill
from holdfast.runner.task_turn import TaskTurn
from holdfast.runner.turn import Turn
from tests.unit.runner.turn_rig import START, message

TYPE = "mail.send.v1"

NEXTS: dict[str, Next] = {"hold": Hold(), "suspend": Suspend(), "release": Release()}


def declared() -> Task[[int], int]:
    policy = Retry(max_attempts=3, delay=lambda attempt: 60.0 * attempt, jitter=0, give_up_on=KeyError)

    @Registry().task(TYPE, retry=policy, timeout=5, retry_timeout=True)
    def send(number: int) -> int:
        return number

    return send


def attempt(attempts: int, retry_seconds: float | None) -> Entry:
    return Entry(
        location=TYPE,
        kind=EntryKind.STEP,
        state=EntryState.RETRYING,
        attempts=attempts,
        started_at=START,
        retry_at=None if retry_seconds is None else START + round(retry_seconds * SECOND),
    )


def leased(
    *,
    entries: tuple[Entry, ...] = (),
    token: int = 1,
    crashes: int = 0,
    payload: str = '{"number": 1}',
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    suspended_seconds: float | None = None,
) -> Lease:
    run = Run(
        id="task-run",
        type=TYPE,
        state=RunState.RUNNING,
        payload=payload,
        created_at=START - 60 * SECOND,
        start_at=START - 60 * SECOND,
        updated_at=START,
        worker="w",
        token=token,
        crashes=crashes,
        first_claimed_at=START,
        options=options,
        suspended_at=None if suspended_seconds is None else START + round(suspended_seconds * SECOND),
    )
    return Lease(run=run, entries=entries)


def _untraced(value: Any) -> Any:
    """Remove the traceback of an internal error, because it names lines of code."""
    if isinstance(value, Checkpoint):
        return replace(value, next=_untraced(value.next))
    if isinstance(value, Finish | Block) and value.error is not None:
        return replace(value, error=replace(value.error, traceback=""))
    return value


def _without_calls(standstill: Standstill) -> Any:
    """Replace the steps to start by their fields, because no two calls are equal."""
    start = [(call.location, call.args, call.attempts) for call in standstill.start]
    return [_untraced(standstill.end), start, replace(standstill, start=(), end=None)]


class Pair:
    """One lease that both turns execute."""

    def __init__(self, lease: Lease) -> None:
        task = declared()
        self.turns: list[Turn | TaskTurn] = [Turn(lease, task), TaskTurn(lease, task)]
        self.executing: list[StepCall] = []
        self.now: Micros = START
        self.arrived = 0

    def both(self, act: Callable[[Turn | TaskTurn], Any]) -> Any:
        """Apply an action to both turns and check that the results are equal."""
        full, light = (act(turn) for turn in self.turns)
        assert _untraced(light) == _untraced(full)
        return light

    def compare(self) -> None:
        self.both(lambda turn: turn.outcome)
        self.both(lambda turn: turn.pending.entries)
        self.both(lambda turn: turn.pending.fed_count)
        self.both(lambda turn: turn.is_overdue)
        self.both(lambda turn: turn.stamp if isinstance(turn, TaskTurn) else turn._history.stamp)
        self.both(lambda turn: _without_calls(turn.standstill(self.now)))

    def act(self, what: str, value: Any) -> Checkpoint | None:
        """Apply an action of a worker, or news for it. Return the checkpoint if one was written."""
        match what:
            case "pass":
                self.now += round(value * SECOND)
                self.both(lambda turn: _without_calls(turn.settle(self.now)))
            case "start":
                self.start()
            case "return":
                self.end(lambda turn, call: turn.feed(call, Returned(value), self.now))
            case "raise":
                self.end(lambda turn, call: turn.feed(call, Raised(value), self.now))
            case "time out":
                self.end(lambda turn, call: turn.feed(call, TimedOut(), self.now))
            case "message":
                self.arrived += 1
                self.both(lambda turn: turn.inbox.add([message(self.arrived, "m")]))
            case _:
                return self.write(value)
        return None

    def begin(self) -> None:
        self.both(lambda turn: _without_calls(turn.begin(self.now)))
        self.compare()

    def start(self) -> None:
        if not self.turns[1].standstill(self.now).start:
            return
        self.executing = [turn.standstill(self.now).start[0] for turn in self.turns]
        for turn, call in zip(self.turns, self.executing, strict=True):
            turn.mark_started(call, self.now)

    def end(self, act: Callable[[Turn | TaskTurn, StepCall], object]) -> None:
        calls, self.executing = self.executing, []
        for turn, call in zip(self.turns, calls, strict=False):
            act(turn, call)

    def write(self, next: str) -> Checkpoint:
        """Write what a holder may write at this point."""
        turn = self.turns[1]
        chosen: Next = turn.outcome or NEXTS[next]
        if isinstance(chosen, Suspend) and not turn.standstill(self.now).may_suspend:
            chosen = Hold()
        written: Checkpoint = self.both(lambda turn: turn.take_checkpoint(chosen, self.now))
        self.both(lambda turn: _without_calls(turn.mark_committed(self.now)))
        self.both(lambda turn: turn.remember(written))
        self.both(lambda turn: turn.entries)
        return written

    def evict(self) -> None:
        for turn in self.turns:
            turn.evict()


steps = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([0.5, 30.0, 60.0, 200.0, 5000.0])),
    st.tuples(st.just("start"), st.none()),
    st.tuples(st.just("return"), st.sampled_from([1, "text", object()])),
    st.tuples(st.just("raise"), st.sampled_from([ValueError("no"), KeyError("give up"), Fatal("never"), SystemExit()])),
    st.tuples(st.just("time out"), st.none()),
    st.tuples(st.just("message"), st.none()),
    st.tuples(st.just("write"), st.sampled_from(sorted(NEXTS))),
)

leases = st.builds(
    leased,
    entries=st.one_of(
        st.just(()),
        st.builds(
            lambda attempts, at: (attempt(attempts, at),),
            st.integers(1, 3),
            st.sampled_from([None, -5.0, 50.0]),
        ),
    ),
    token=st.integers(1, 3),
    crashes=st.integers(0, 3),
    payload=st.sampled_from(['{"number": 1}', '{"number": "one"}', "{}"]),
    options=st.builds(RunOptions, max_run=st.sampled_from([None, 90 * SECOND]), max_suspend=st.sampled_from([None, 1])),
    suspended_seconds=st.sampled_from([None, -10.0, 0.0]),
)


waits_for_its_retry = leased(
    entries=(attempt(1, 50.0),), token=2, options=RunOptions(max_suspend=1), suspended_seconds=0.0
)


@example(lease=waits_for_its_retry, plan=[("pass", 0.5)])  # its time limit ends before its next attempt
@example(lease=waits_for_its_retry, plan=[("message", None), ("pass", 0.5)])
@given(lease=leases, plan=st.lists(steps, max_size=15))
def test_both_turns_behave_the_same_whatever_happens(lease: Lease, plan: list[tuple[str, Any]]) -> None:
    pair = Pair(lease)
    try:
        pair.begin()
        for what, value in plan:
            written = pair.act(what, value)
            if written is not None and not isinstance(written.next, Hold):
                return  # the run is released
            pair.compare()
    finally:
        pair.evict()


def test_a_task_that_returns_ends_with_its_entry_in_one_checkpoint() -> None:
    pair = Pair(leased())
    pair.begin()
    pair.start()
    pair.now += SECOND
    pair.end(lambda turn, call: turn.feed(call, Returned(7), pair.now))
    written = pair.write("hold")
    assert written.next == Finish(state=RunState.SUCCEEDED, result="7")
    assert [(entry.location, entry.position, entry.result) for entry in written.entries] == [(TYPE, 1, "7")]
    pair.evict()


def test_a_payload_that_no_longer_fits_blocks_a_task_that_was_tried_before() -> None:
    pair = Pair(leased(entries=(attempt(1, None),), token=2, payload='{"other": 1}'))
    pair.begin()
    assert isinstance(pair.turns[1].outcome, Block)
    assert pair.turns[1].outcome.error.type == "HistoryDiverged"
    pair.evict()


@pytest.mark.parametrize(
    ("entries", "is_task"),
    [
        ((), True),
        ((attempt(1, 60),), True),
        ((Entry(location=TYPE, kind=EntryKind.STEP, state=EntryState.DONE, position=1, result="1"),), False),
        ((Entry(location="other", kind=EntryKind.STEP, state=EntryState.RETRYING),), False),
        ((Entry(location=TYPE, kind=EntryKind.TIMER, state=EntryState.DONE, position=1),), False),
        ((attempt(1, 60), Entry(location="x", kind=EntryKind.STEP, state=EntryState.DONE, position=1)), False),
    ],
)
def test_a_history_with_more_than_attempts_is_left_to_the_full_turn(entries: tuple[Entry, ...], is_task: bool) -> None:
    assert TaskTurn.suits(declared(), entries) is is_task


def test_the_pause_before_the_next_attempt_follows_the_policy() -> None:
    random.seed(1)
    turn = TaskTurn(leased(), declared())
    (call,) = turn.begin(START).start
    turn.mark_started(call, START)
    standstill = turn.feed(call, Raised(ValueError("no")), START)
    assert standstill.wake_at == START + 60 * SECOND
    assert standstill.may_suspend
