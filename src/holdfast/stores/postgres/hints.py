"""Hints about changes, for listeners in this process and, by notifications, in other processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from holdfast.core.hint import Hint, News
from holdfast.stores.loops import call_on
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connector import Connector
from holdfast.stores.postgres.notify import PING_SECONDS, NotifyConnection

STOP_SECONDS = 2.0

FIRST_POLL_SECONDS = 0.05
LAST_POLL_SECONDS = 2.0
POLL_GROWTH = 1.5

Listener = Callable[[Hint], None]


def _nothing() -> None:
    pass


class Hints:
    """The listeners of this process, and the connection to other processes.

    With `?hints=off` this process neither sends nor receives notifications. Its listeners then get hints to poll:
    often after a change in this process, then less and less often.
    """

    def __init__(
        self, address: PostgresAddress, *, connector: Connector | None = None, ping_seconds: float = PING_SECONDS
    ) -> None:
        self._address = address
        self._connector = connector or Connector(address)
        self._ping_seconds = ping_seconds
        self._changing = threading.Lock()
        self._circles: dict[asyncio.AbstractEventLoop, _Circle] = {}
        self._notify: NotifyConnection | None = None
        self._requested: Callable[[], None] = _nothing

    # Lifetime

    def start(self) -> None:
        """Begin to send and receive notifications. Listeners may have joined before."""
        if self._address.has_hints and self._notify is None:
            self._notify = NotifyConnection(
                self._connector, self.tell, self._requested, ping_seconds=self._ping_seconds
            )
            self._attend()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Send the queued hints and close the connection. Blocks until that is done. Listeners stay."""
        connection, self._notify = self._notify, None
        if connection is not None:
            connection.stop(seconds)

    def abandon(self) -> None:
        """Drop everything in a forked child. It takes no lock, because a thread of the parent may have held it."""
        connection, self._notify = self._notify, None
        self._changing = threading.Lock()
        self._circles = {}
        if connection is not None:
            connection.abandon()

    def on_request(self, requested: Callable[[], None]) -> None:
        """Set the function that `notify`'s thread calls when SQL producers may have left requests.

        Call this before `start`.
        """
        self._requested = requested

    # For listeners, on their loop

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Deliver hints to a listener on the running loop. Call the returned function to stop."""
        loop = asyncio.get_running_loop()
        with self._changing:
            circle = self._circles.get(loop)
            if circle is None:
                circle = self._circles[loop] = _Circle(loop, is_polling=not self._address.has_hints)
        subscription = circle.join(listener)
        self._attend()

        def leave() -> None:
            if circle.leave(subscription):
                self._dissolve(circle)

        return leave

    def _dissolve(self, circle: _Circle) -> None:
        with self._changing:
            if self._circles.get(circle.loop) is circle:
                del self._circles[circle.loop]
        self._attend()

    def _attend(self) -> None:
        """Listen to other processes only while this process has listeners."""
        if self._notify is not None:
            self._notify.listen(is_wanted=bool(self._circles))

    # For senders, from any thread

    def tell(self, hint: Hint) -> None:
        """Give a hint to the listeners in this process."""
        for circle in tuple(self._circles.values()):
            if not circle.tell(hint):
                self._dissolve(circle)

    def announce(self, news: News) -> None:
        """Send the hint of some news, if there is one, to this process and to other processes."""
        hint = news.hint()
        if hint is not None:
            self.tell(hint)
            self.ring(hint)

    def ring(self, hint: Hint) -> None:
        """Send a hint to other processes, soon and batched with others. Call this after the commit, never before."""
        if (line := self._notify) is not None:
            line.tell(hint.ready)

    def stir(self) -> None:
        """Make all listeners, here and in other processes, look for changes that this process does not know.

        One case is a commit whose answer was lost: the repetition finds nothing to do, and so has no news.
        """
        hint = Hint(is_elsewhere=True)
        self.tell(hint)
        self.ring(hint)


class _Circle:
    """The listeners on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_polling: bool) -> None:
        self.loop = loop
        self._is_polling = is_polling
        self._listeners: tuple[list[Listener], ...] = ()
        self._interval = FIRST_POLL_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def join(self, listener: Listener) -> list[Listener]:
        subscription = [listener]  # a list has its own identity, so one function can subscribe twice
        self._listeners += (subscription,)
        self._poll_soon()
        return subscription

    def leave(self, subscription: list[Listener]) -> bool:
        """Remove a listener. Return True if none is left. May be called twice, and after the loop is closed."""
        self._listeners = tuple(one for one in self._listeners if one is not subscription)
        if self._listeners:
            return False
        with suppress(RuntimeError):  # the loop is closed, and its timers with it
            self.loop.call_soon_threadsafe(self._end)
        return True

    def tell(self, hint: Hint) -> bool:
        """Give a hint to the listeners. Return False if their loop is closed."""
        return call_on(self.loop, self._hear, hint)

    # On its loop

    def _hear(self, hint: Hint) -> None:
        for (listener,) in self._listeners:
            self.loop.call_soon(listener, hint)  # one callback each, so that an error in one does not skip the next
        self._poll_soon()

    def _poll_soon(self) -> None:
        """Poll soon: after a change in this process, a change from another process is likely to follow."""
        if self._is_polling:
            self._interval = FIRST_POLL_SECONDS
            # Never later than planned, or a stream of hints would postpone the poll for ever.
            if self._timer is None or self._timer.when() > self.loop.time() + self._interval:
                self._poll_later()

    def _poll_later(self) -> None:
        self._end()
        self._timer = self.loop.call_later(self._interval, self._poll)

    def _poll(self) -> None:
        for (listener,) in self._listeners:
            self.loop.call_soon(listener, Hint(is_elsewhere=True))
        self._interval = min(LAST_POLL_SECONDS, self._interval * POLL_GROWTH)
        self._poll_later()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
