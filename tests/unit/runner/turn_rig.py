"""A rig for turns: drives a run step by step, without worker, store or event loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Registry
from holdfast.core.checkpoint import Checkpoint, Finish, Hold, Next, Suspend
from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Lease, Run, WaitKind
from holdfast.core.states import RunState
from holdfast.runner.operation import Raised, Returned, StepCall
from holdfast.runner.run_turn import Standstill
from holdfast.runner.turn import Turn

START: Micros = 1_900_000_000 * SECOND
_turns: list[Turn] = []


@pytest.fixture
def evict_turns() -> Iterator[None]:
    """Evict every turn of a test at its end."""
    yield
    while _turns:
        _turns.pop().evict()


def forget(turn: Turn) -> weakref.ref[Turn]:
    """Drop a turn that has left memory. The reference returned is dead if no other object holds the turn."""
    _turns.remove(turn)
    return weakref.ref(turn)


class Rig:
    """One held run. Seconds count from its first claim."""

    def __init__(
        self,
        workflow: Callable[..., Any],
        *,
        entries: tuple[Entry, ...] = (),
        arrivals: tuple[Arrival, ...] = (),
        token: int = 1,
        crashes: int = 0,
        python: str | None = None,
        payload: str = "{}",
        strict: bool | None = None,
    ) -> None:
        options: dict[str, Any] = {} if strict is None else {"strict": strict}
        definition = Registry().workflow("rig.v1", **options)(workflow)
        self.seconds = 0.0
        run = Run(
            id="rig-run",
            type="rig.v1",
            state=RunState.RUNNING,
            payload=payload,
            created_at=START - 60 * SECOND,
            start_at=START - 60 * SECOND,
            updated_at=START,
            worker="w",
            token=token,
            crashes=crashes,
            python=python,
            arrivals=max((arrival.number for arrival in arrivals), default=0),
            first_claimed_at=START,
        )
        self.turn = Turn(Lease(run=run, entries=entries, arrivals=arrivals), definition)
        self.executing: dict[str, StepCall] = {}
        self.abandoned: list[str] = []
        self.written: list[Checkpoint] = []
        _turns.append(self.turn)

    @property
    def now(self) -> Micros:
        return START + round(self.seconds * SECOND)

    def begin(self, seconds: float = 0) -> Rig:
        self.seconds = seconds
        self.turn.begin(self.now)
        return self

    def pass_to(self, seconds: float) -> Rig:
        """Let time pass and feed what is due."""
        self.seconds = seconds
        self.turn.settle(self.now)
        return self

    def arrive(self, *arrivals: Arrival) -> Rig:
        self.turn.inbox.add(arrivals)
        self.turn.settle(self.now)
        return self

    def standstill(self) -> Standstill:
        """Return the current requests of the turn."""
        return self.turn.standstill(self.now)

    def startable(self) -> list[str]:
        return [call.location for call in self.standstill().start]

    def start(self) -> list[str]:
        """Start all steps that may start, and return their locations."""
        calls = self.standstill().start
        for call in calls:
            self.turn.mark_started(call, self.now)
            self.executing[call.location] = call
        return [call.location for call in calls]

    def finish(self, location: str, value: Any = None) -> Rig:
        standstill = self.turn.feed(self.executing.pop(location), Returned(value), self.now)
        self.abandoned += standstill.abandon
        return self

    def fail(self, location: str, error: BaseException) -> Rig:
        self.turn.feed(self.executing.pop(location), Raised(error), self.now)
        return self

    def result(self) -> str | None:
        """Return the result of the run, which has ended."""
        assert isinstance(self.turn.outcome, Finish)
        assert self.turn.outcome.state is RunState.SUCCEEDED, self.turn.outcome.error
        return self.turn.outcome.result

    def is_open(self) -> bool:
        """True if the run continues."""
        return self.turn.outcome is None

    def take(self, next: Next | None = None) -> Checkpoint:
        """A checkpoint on its way to the store."""
        return self.turn.take_checkpoint(next or self.turn.outcome or Hold(), self.now)

    def commit(self, next: Next | None = None) -> Checkpoint:
        """Write the pending checkpoint."""
        checkpoint = self.take(next)
        self.turn.mark_committed(self.now)
        self.written.append(checkpoint)
        return checkpoint

    def suspend(self) -> Checkpoint:
        assert self.standstill().may_suspend
        return self.commit(Suspend())

    def play(self, value: Callable[[str], Any] = lambda location: location) -> Rig:
        """Execute and commit until the run can only wait."""
        while self.turn.outcome is None and (started := self.start() or self.standstill().must_write):
            for location in started if isinstance(started, list) else ():
                if location in self.executing:
                    self.finish(location, value(location))
            self.commit()
        return self

    @property
    def history(self) -> tuple[Entry, ...]:
        """Return everything written so far, by position."""
        entries = {entry.location: entry for checkpoint in self.written for entry in checkpoint.entries}
        return tuple(sorted(entries.values(), key=lambda entry: entry.position))

    @property
    def told(self) -> list[str]:
        return [f"{entry.position} {entry.location}" for entry in self.history]


def step(location: str, position: int, result: Any = "null", **options: Any) -> Entry:
    """The record of a finished step."""
    return Entry(
        location=location,
        kind=EntryKind.STEP,
        state=EntryState.DONE,
        position=position,
        attempts=1,
        result=result,
        **{"started_at": START, "finished_at": START, **options},
    )


def message(number: int, name: str, payload: str = "null", seconds: float = 0) -> Arrival:
    return Arrival(
        number=number,
        kind=WaitKind.MESSAGE,
        name=name,
        at=START + round(seconds * SECOND),
        payload=payload,
        ref=f"m{number}",
    )


def event(number: int, topic: str, published: int, payload: str = "null", seconds: float = 0) -> Arrival:
    return Arrival(
        number=number,
        kind=WaitKind.EVENT,
        name=topic,
        at=START + round(seconds * SECOND),
        payload=payload,
        ref=str(published),
    )


def child_end(number: int, child_id: str, payload: str = "null", error: ErrorRecord | None = None) -> Arrival:
    return Arrival(
        number=number,
        kind=WaitKind.CHILD,
        name=child_id,
        at=START,
        payload=payload,
        state=RunState.SUCCEEDED if error is None else RunState.FAILED,
        error=error,
    )
