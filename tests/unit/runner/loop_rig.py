"""A small driver in the place of a turn: it keeps the requests of a run and settles them on command."""

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
    """One run: its loop, its requested steps and timers, and the notes of its code."""

    made: ClassVar[list[Rig]] = []

    def __init__(self, workflow: Workflow, *, run_id: str = "run-1", now: float = 1_000.0) -> None:
        self.pending: dict[str, asyncio.Future[Any]] = {}
        self.timers: dict[str, LoopTimer] = {}
        self.cancelled_timers: list[str] = []
        self.trace: list[Any] = []
        self.loop = RunLoop(run_id, self, now=now)
        self.root = self.loop.spawn(workflow(self))
        self.made.append(self)

    # Called by the workflow.

    def step(self, name: str) -> Coroutine[Any, Any, Any]:
        """Request a step as a context does: the location is fixed at the call, the request made at the first await."""
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

    # Called by the test.

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
        """Fire a timer at its deadline, by default the earliest one."""
        timer = self.timers[location] if location else min(self.timers.values(), key=LoopTimer.when)
        self.loop.now = max(self.loop.now, timer.deadline)
        del self.timers[timer.location]
        self.loop.drive(lambda: self.loop.fire(timer))

    # Called by the loop.

    def timer_started(self, timer: LoopTimer) -> None:
        self.timers[timer.location] = timer

    def timer_cancelled(self, timer: LoopTimer) -> None:
        del self.timers[timer.location]
        self.cancelled_timers.append(timer.location)


@pytest.fixture(autouse=True)
def evict_runs() -> Iterator[None]:
    """Close the runs of a test: otherwise each pending task that is destroyed causes a log line."""
    yield
    while Rig.made:
        Rig.made.pop().loop.evict()


def run(workflow: Workflow, *steps: str) -> Rig:
    """A started rig in which these steps have finished, each with its own name as result."""
    rig = Rig(workflow).start()
    for location in steps:
        rig.finish(location, location)
    return rig
