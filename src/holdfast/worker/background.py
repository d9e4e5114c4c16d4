"""The shape of a worker's background jobs: one round at a time, when something asks for it or its time has come."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from holdfast.core.clock import Clock, Micros, Timer

T = TypeVar("T")


class BackgroundJob(ABC, Generic[T]):
    """A job that repeats until it is stopped. A round is a task; a plain callback of the loop handles its end.

    A wake-up during a round causes another round.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[T] | None = None
        self._timer: Timer | None = None
        self._timer_at: Micros | None = None
        self._is_wanted = False
        self._is_stopped = False

    @property
    def is_running(self) -> bool:
        """True during a round."""
        return self._task is not None

    @property
    def is_idle(self) -> bool:
        """True if the last round left nothing to do and nothing has happened since."""
        return self._task is None and not self._is_wanted

    def wake(self) -> None:
        """Do a round soon, because there may be something to do."""
        if not self._is_stopped:
            self._is_wanted = True
            if self._task is None and not self._must_pause():
                self._begin()

    async def stop(self, patience_seconds: float = 0.0) -> None:
        """Stop repeating. A round that runs is cancelled, unless it ends in time."""
        self._is_stopped = True
        self._disarm()
        if (task := self._task) is not None:
            if patience_seconds:
                await asyncio.wait([task], timeout=patience_seconds)
            task.cancel()
            await asyncio.wait([task])

    @abstractmethod
    async def _round(self) -> T:
        """Do the job once."""

    @abstractmethod
    def _on_end(self, task: asyncio.Task[T]) -> None:
        """Handle the result or the error of a round, and plan the next one. Not called for a cancelled round."""

    def _must_pause(self) -> bool:
        """Return True if only the timer may begin a round, because the store could not be reached a moment ago."""
        return False

    def _begin(self) -> None:
        self._is_wanted = False
        self._disarm()
        self._task = self._loop.create_task(self._round())
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if not task.cancelled():
            self._on_end(task)

    def wake_by(self, when: Micros | None) -> None:
        """Wake up at this instant, or earlier if an earlier timer is set."""
        if when is None or self._is_stopped or (self._timer_at is not None and self._timer_at <= when):
            return
        self._disarm()
        self._timer_at = when
        self._timer = self._clock.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        self.wake()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None
