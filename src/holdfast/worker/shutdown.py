"""Shutdown: the signals that tell a worker process to stop, and then to hurry."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Shutdown:
    """What signals have asked for so far. A worker waits for `stop`, and while it stops for `hurry`."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def give(self) -> None:
        """The first order is to stop, every further one to hurry."""
        (self.hurry if self.stop.is_set() else self.stop).set()

    def give_both(self) -> None:
        self.stop.set()
        self.hurry.set()

    @contextmanager
    def from_person(self) -> Iterator[None]:
        """Heed SIGTERM and SIGINT alike: the second of them means hurry."""
        with _heeding({signal.SIGTERM: self.give, signal.SIGINT: self.give}):
            yield

    @contextmanager
    def from_supervisor(self) -> Iterator[None]:
        """Heed SIGTERM as stop and SIGINT as hurry.

        However often SIGTERM comes: a service manager may send it to every process, the supervisor among them, which
        passes it on.
        """
        with _heeding({signal.SIGTERM: self.stop.set, signal.SIGINT: self.give_both}):
            yield


@contextmanager
def _heeding(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    installed = []
    for number, handler in handlers.items():
        # In a thread, and on a loop that cannot, signals stay with whoever has them.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, handler)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
