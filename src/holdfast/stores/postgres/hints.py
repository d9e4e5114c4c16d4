"""Hints: what happened, for listeners in this process and, by notifications, in others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from holdfast.core.hint import Hint, News
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

    Without hints (`?hints=off`) nobody else is told or heard: listeners are told to look for themselves, often
    after something happened here, then less and less.
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

    # Its life

    def start(self) -> None:
        """Begin to hear and to tell other processes. Who listens may have begun before."""
        if self._address.has_hints and self._notify is None:
            self._notify = NotifyConnection(
                self._connector, self.tell, self._requested, ping_seconds=self._ping_seconds
            )
            self._attend()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Tell others what they were not told yet, and hang up. Blocks until that is done. Listeners stay."""
        connection, self._notify = self._notify, None
        if connection is not None:
            connection.stop(seconds)

    def abandon(self) -> None:
        """In a forked child: use and close nothing of the parent's. No lock is taken, which a thread may have held."""
        connection, self._notify = self._notify, None
        self._changing = threading.Lock()
        self._circles = {}
        if connection is not None:
            connection.abandon()

    def on_request(self, requested: Callable[[], None]) -> None:
        """Call this, in the thread of the line, when SQL producers may have left requests. Set before it starts."""
        self._requested = requested

    # For listeners, on their loop

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have hints delivered on the running loop until the answer is called."""
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
        """Have the line listen if somebody does."""
        if self._notify is not None:
            self._notify.listen(is_wanted=bool(self._circles))

    # For whoever has news, from any thread

    def tell(self, hint: Hint) -> None:
        """Tell those who listen in this process."""
        for circle in tuple(self._circles.values()):
            if not circle.tell(hint):
                self._dissolve(circle)

    def announce(self, news: News) -> None:
        """Tell everybody what there is to tell, if anything."""
        hint = news.hint()
        if hint is not None:
            self.tell(hint)
            self.ring(hint)

    def ring(self, hint: Hint) -> None:
        """Tell other processes: soon, together with what else there is to tell. After the commit, never before."""
        if (line := self._notify) is not None:
            line.tell(hint.ready)

    def stir(self) -> None:
        """Have everybody look for themselves. Something happened, and what it was is not known here.

        For one, when the answer to a commit got lost: the repetition finds nothing to do, and nothing to tell.
        """
        hint = Hint(is_elsewhere=True)
        self.tell(hint)
        self.ring(hint)


class _Circle:
    """Those who listen on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_polling: bool) -> None:
        self.loop = loop
        self._is_polling = is_polling
        self._listeners: tuple[list[Listener], ...] = ()
        self._interval = FIRST_POLL_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def join(self, listener: Listener) -> list[Listener]:
        subscription = [listener]  # a thing of its own: somebody may listen twice with one function
        self._listeners += (subscription,)
        self._poll_soon()
        return subscription

    def leave(self, subscription: list[Listener]) -> bool:
        """Whether nobody is left. May be called again, and when the loop is gone."""
        self._listeners = tuple(one for one in self._listeners if one is not subscription)
        if self._listeners:
            return False
        with suppress(RuntimeError):  # the loop is closed, and its timers with it
            self.loop.call_soon_threadsafe(self._end)
        return True

    def tell(self, hint: Hint) -> bool:
        """False if the loop is closed: nobody listens there any more."""
        try:
            self.loop.call_soon_threadsafe(self._hear, hint)
        except RuntimeError:
            return False
        return True

    # On its loop

    def _hear(self, hint: Hint) -> None:
        for (listener,) in self._listeners:
            self.loop.call_soon(listener, hint)  # each by itself, so that one that raises does not silence the next
        self._poll_soon()

    def _poll_soon(self) -> None:
        """Something happened here; most likely there will soon be something to see from elsewhere."""
        if self._is_polling:
            self._interval = FIRST_POLL_SECONDS
            # Never later than planned, or a stream of hints would put it off for ever.
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
