"""A small driver that plays the turn: it keeps what a run asked for and settles it when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ClassVar

import pytest

from holdfast.runner.loop import LoopTimer, RunLoop

Workflow = Callable[["Rig"], Coroutine[Any, Any, Any]]


class StepError(Exception):
    """A step failed."""


class Rig:
    """One run: its loop, the steps and timers it asked for, and what its code wrote down."""

    made: ClassVar[list[Rig]] = []

    def __init__(self, workflow: Workflow, *, run_id: str = "run-1", now: float = 1_000.0) -> None:
        self.pending: dict[str, asyncio.Future[Any]] = {}
        self.timers: dict[str, LoopTimer] = {}
        self.cancelled_timers: list[str] = []
        self.trace: list[Any] = []
        self.loop = RunLoop(run_id, self, now=now)
        self.root = self.loop.spawn(workflow(self))
        self.made.append(self)

    # What the workflow does.

    def step(self, name: str) -> Coroutine[Any, Any, Any]:
        """Like a real one: the location is fixed at the call, the request is made at the first await."""
        return self._perform(self.loop.scope.locate(name))

    async def _perform(self, location: str) -> Any:
        # The exact class, as in the real turn.
        future: asyncio.Future[Any] = asyncio.Future(loop=self.loop)
        self.pending[location] = future
        try:
            return await future
        finally:
            self.pending.pop(location, None)

    def note(self, *words: Any) -> None:
        self.trace.append(words[0] if len(words) == 1 else words)

    # What the test does.

    def start(self) -> Rig:
        self.loop.drive()
        return self

    def finish(self, location: str, value: Any = None) -> None:
        future = self.pending[location]
        self.loop.drive(lambda: future.set_result(value))

    def fail(self, location: str, message: str = "no") -> None:
        future = self.pending[location]
        self.loop.drive(lambda: future.set_exception(StepError(message)))

    def fire(self, location: str = "") -> None:
        """Let a timer fire at its deadline, by default the one that is due first."""
        timer = self.timers[location] if location else min(self.timers.values(), key=LoopTimer.when)
        self.loop.now = max(self.loop.now, timer.deadline)
        del self.timers[timer.location]
        self.loop.drive(lambda: self.loop.fire(timer))

    # What the loop tells.

    def timer_started(self, timer: LoopTimer) -> None:
        self.timers[timer.location] = timer

    def timer_cancelled(self, timer: LoopTimer) -> None:
        del self.timers[timer.location]
        self.cancelled_timers.append(timer.location)


@pytest.fixture(autouse=True)
def evict_runs() -> Iterator[None]:
    """Let no run outlive its test: its tasks would be destroyed while pending, which is worth a log line each."""
    yield
    while Rig.made:
        Rig.made.pop().loop.evict()


def run(workflow: Workflow, *steps: str) -> Rig:
    """A rig that has been started, and in which these steps have finished, each with its own name as result."""
    rig = Rig(workflow).start()
    for location in steps:
        rig.finish(location, location)
    return rig
