"""Calls on event loops, from any thread, and listeners that are called there.

A loop is woken from other threads through a socket that holds a few hundred wake-ups, and that the signals of the
process share: if it is full, a signal is lost. So calls from the loop's own thread must not use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *arguments: *Ts) -> bool:
    """Call a function soon on a loop, this one or another. Return False if that loop is closed."""
    call = loop.call_soon if loop is running_loop() else loop.call_soon_threadsafe
    try:
        call(callback, *arguments)
    except RuntimeError:
        return False
    return True


class Listeners(Generic[T]):
    """Functions that get each value, each on the event loop on which it was added."""

    def __init__(self) -> None:
        self._added: tuple[tuple[asyncio.AbstractEventLoop, list[Callable[[T], object]]], ...] = ()

    def add(self, listener: Callable[[T], object]) -> Callable[[], None]:
        """Call a function on the running loop with each value, until the returned function is called."""
        one = [listener]  # a list has its own identity, so one function can listen twice
        self._added += ((asyncio.get_running_loop(), one),)

        def stop() -> None:
            self._added = tuple(pair for pair in self._added if pair[1] is not one)
            one.clear()

        return stop

    def send(self, value: T) -> None:
        """Send a value to all listeners. Any thread may do so."""
        for loop, one in self._added:
            call_on(loop, _receive, one, value)  # one callback each: an error in one does not skip the next


def _receive(one: list[Callable[[T], object]], value: T) -> None:
    for listener in one:  # none if it has stopped meanwhile
        listener(value)
