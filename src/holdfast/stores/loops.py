"""Calls on event loops, from any thread.

A loop is woken from other threads through a socket that holds a few hundred wake-ups, and that the signals of the
process share: if it is full, a signal is lost. So calls from the loop's own thread must not use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *arguments: *Ts) -> bool:
    """Call a function soon on a loop, this one or another. Return False if that loop is closed."""
    hand_over = loop.call_soon if loop is running_loop() else loop.call_soon_threadsafe
    try:
        hand_over(callback, *arguments)
    except RuntimeError:
        return False
    return True
