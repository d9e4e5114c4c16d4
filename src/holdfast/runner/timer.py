"""A timer of workflow code, such as the one inside `asyncio.sleep`, and the plain handle it is made of.

A timer never fires by itself: the loop tells its host of it, and the host says when it is due.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol


class LoopHandle:
    """A callback on its way through the ready queue; what `call_soon` returns."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        # A callback that does nothing instead of a flag: whoever runs handles has nothing to ask.
        self.callback, self.args = nothing, ()

    def cancelled(self) -> bool:
        return self.callback is nothing


class LoopTimer(LoopHandle):
    """What `call_at` and `call_later` return.

    `location` is fixed when the timer is made; `deadline` is in seconds on the scale of `loop.time()`.
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
        # `asyncio.sleep` cancels its timer after it has fired, too: nobody need hear of that.
        if not self.fired:
            self.owner.timer_cancelled(self)

    def __repr__(self) -> str:
        state = "fired" if self.fired else "cancelled" if self.cancelled() else "waiting"
        return f"<LoopTimer {self.location!r} at {self.deadline} {state}>"


class TimerOwner(Protocol):
    """Who is told that a timer was cancelled."""

    def timer_cancelled(self, timer: LoopTimer) -> None: ...


def nothing(*_: object) -> None:
    """The callback of a handle that was cancelled."""
