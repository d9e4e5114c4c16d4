"""Shutdown: the Unix signals that order a worker process to stop, and then to hurry."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Shutdown:
    """The orders received so far. A worker waits for `stop`; while it stops, it waits for `hurry`."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def order(self) -> None:
        """Pass the next order on: the first order means stop, every further one means hurry."""
        (self.hurry if self.stop.is_set() else self.stop).set()

    def order_both(self) -> None:
        self.stop.set()
        self.hurry.set()

    @contextmanager
    def from_person(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT alike: the first signal means stop, the second means hurry."""
        with _handling({signal.SIGTERM: self.order, signal.SIGINT: self.order}):
            yield

    @contextmanager
    def from_supervisor(self) -> Iterator[None]:
        """Handle SIGTERM as stop and SIGINT as hurry.

        A repeated SIGTERM still means stop. A service manager may send it to every process, and the supervisor, which
        also gets it, passes it on.
        """
        with _handling({signal.SIGTERM: self.stop.set, signal.SIGINT: self.order_both}):
            yield


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    installed = []
    for number, handler in handlers.items():
        # In a thread, or on a loop without signal support, the existing signal handlers stay.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, handler)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
