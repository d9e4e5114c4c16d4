"""Timers of workflow code, such as the one inside `asyncio.sleep`, and the handles of callbacks.

A timer never fires by itself. The loop reports it to its host, and the host decides when it fires.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol


class LoopHandle:
    """A callback in the ready queue. `call_soon` returns it."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        # Replace the callback instead of setting a flag, so that the drive needs no check per handle.
        self.callback, self.args = nothing, ()

    def cancelled(self) -> bool:
        return self.callback is nothing


class LoopTimer(LoopHandle):
    """A timer. `call_at` and `call_later` return it.

    `location` is fixed when the timer is created. `deadline` is in seconds on the scale of `loop.time()`.
    """

    __slots__ = ("deadline", "fired", "location", "owner")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
        *,
        owner: TimerOwner,
        location: str,
        deadline: float,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.owner = owner
        self.location = location
        self.deadline = deadline
        self.fired = False

    def when(self) -> float:
        return self.deadline

    def cancel(self) -> None:
        if self.callback is nothing:
            return
        self.callback, self.args = nothing, ()
        # `asyncio.sleep` cancels its timer even after it has fired. The owner does not need to know that.
        if not self.fired:
            self.owner.timer_cancelled(self)

    def __repr__(self) -> str:
        state = "fired" if self.fired else "cancelled" if self.cancelled() else "waiting"
        return f"<LoopTimer {self.location!r} at {self.deadline} {state}>"


class TimerOwner(Protocol):
    """The object to which a timer reports its cancellation."""

    def timer_cancelled(self, timer: LoopTimer) -> None: ...


def nothing(*_: object) -> None:
    """Do nothing. A cancelled handle has this callback."""
