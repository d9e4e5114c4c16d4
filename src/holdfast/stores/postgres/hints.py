"""Hints about changes, for listeners in this process and, by notifications, in other processes.

Nothing depends on them: a lost hint costs only the delay until the next poll.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import psycopg
from psycopg import sql

from holdfast.core.errors import HoldfastError
from holdfast.core.news import Hint, News
from holdfast.stores.loops import call_on
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import Connection, Connector, SessionLimits, disown, is_lost, is_timeout

STOP_SECONDS = 2.0

FIRST_POLL_SECONDS = 0.05
LAST_POLL_SECONDS = 2.0
POLL_GROWTH = 1.5

APART_SECONDS = 0.01
SPARSE_APART_SECONDS = 0.002
SPARSE = 2
PING_SECONDS = 15.0
RETRY_SECONDS = 0.5
UNUSED_SECONDS = 60.0
PAYLOAD_LIMIT_BYTES = 4_000
"""Maximum length of a notification. Postgres takes 8,000 bytes. A longer hint says only that something changed."""

_LIMITS = SessionLimits(statement_seconds=2.0, lock_seconds=2.0, idle_seconds=10.0)
_GIVEN_UP_SECONDS = 1.0
_ANYTHING = Hint(is_elsewhere=True)
"""Listeners that get it look for all that they wait for."""

Listener = Callable[[Hint], None]


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
        self._loops: dict[asyncio.AbstractEventLoop, _LoopListeners] = {}
        self._notifications: Notifications | None = None
        self._on_request: Callable[[], None] = lambda: None

    # Lifetime

    def start(self) -> None:
        """Begin to send and receive notifications. Listeners may have joined before."""
        if self._address.has_hints and self._notifications is None:
            self._notifications = Notifications(
                self._connector, self.send, self._on_request, ping_seconds=self._ping_seconds
            )
            self._follow_listeners()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Send the queued hints and close the connection. Blocks until that is done. Listeners stay."""
        notifications, self._notifications = self._notifications, None
        if notifications is not None:
            notifications.stop(seconds)

    def abandon(self) -> None:
        """Drop everything in a forked child. It takes no lock, because a thread of the parent may have held it."""
        notifications, self._notifications = self._notifications, None
        self._changing = threading.Lock()
        self._loops = {}
        if notifications is not None:
            notifications.abandon()

    def on_request(self, call: Callable[[], None]) -> None:
        """Set the function that is called, in a thread, when SQL producers may have left requests.

        Call this before `start`.
        """
        self._on_request = call

    # For listeners, on their loop

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Deliver hints to a listener on the running loop. Call the returned function to stop."""
        loop = asyncio.get_running_loop()
        with self._changing:
            listeners = self._loops.get(loop)
            if listeners is None:
                listeners = self._loops[loop] = _LoopListeners(loop, is_polling=not self._address.has_hints)
        subscription = listeners.join(listener)
        self._follow_listeners()

        def leave() -> None:
            if listeners.leave(subscription):
                self._drop(listeners)

        return leave

    def _drop(self, listeners: _LoopListeners) -> None:
        with self._changing:
            if self._loops.get(listeners.loop) is listeners:
                del self._loops[listeners.loop]
        self._follow_listeners()

    def _follow_listeners(self) -> None:
        """Listen to other processes only while this process has listeners."""
        if self._notifications is not None:
            self._notifications.listen(is_wanted=bool(self._loops))

    # For senders, from any thread

    def send(self, hint: Hint) -> None:
        """Give a hint to the listeners in this process."""
        for listeners in tuple(self._loops.values()):
            if not listeners.send(hint):
                self._drop(listeners)

    def announce(self, news: News) -> None:
        """Send the hint of some news, if there is one, to this process and to other processes."""
        hint = news.hint()
        if hint is not None:
            self.send(hint)
            self.wake(hint)

    def wake(self, hint: Hint) -> None:
        """Send a hint to other processes, soon and batched with others. Call this after the commit, never before."""
        if (notifications := self._notifications) is not None:
            notifications.send(hint)

    def wake_all(self) -> None:
        """Make all listeners, here and in other processes, look for changes that this process does not know.

        One case is a commit whose answer was lost: the repetition finds nothing to do, and so has no news.
        """
        self.send(_ANYTHING)
        self.wake(_ANYTHING)


class _LoopListeners:
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
            self.loop.call_soon_threadsafe(self._stop_polling)
        return True

    def send(self, hint: Hint) -> bool:
        """Give a hint to the listeners. Return False if their loop is closed."""
        return call_on(self.loop, self._deliver, hint)

    # On its loop

    def _deliver(self, hint: Hint) -> None:
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
        self._stop_polling()
        self._timer = self.loop.call_later(self._interval, self._poll)

    def _poll(self) -> None:
        for (listener,) in self._listeners:
            self.loop.call_soon(listener, _ANYTHING)
        self._interval = min(LAST_POLL_SECONDS, self._interval * POLL_GROWTH)
        self._poll_later()

    def _stop_polling(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Notifications:
    """NOTIFY and LISTEN: one connection, in a thread of its own, that carries hints between processes.

    It sends hints outside the transactions of operations, because transactions that notify share one lock and their
    commits would wait for each other. Frequent hints are sent together, at most a hundred times a second. A rare hint
    is sent at once. The thread calls `on_hint` with hints of other processes, and `on_request` when SQL producers may
    have left requests. The connection is opened on demand and closed when it is no longer needed.
    """

    def __init__(
        self,
        connector: Connector,
        on_hint: Listener,
        on_request: Callable[[], None],
        *,
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self._connector = connector
        self._on_hint = on_hint
        self._on_request = on_request
        self._ping_seconds = ping_seconds
        self._channel = connector.address.schema  # so that a plain `notify holdfast` in psql works
        self._sender = secrets.token_hex(4)
        self._changing = threading.Lock()
        self._waker = _Waker()
        self._thread: threading.Thread | None = None
        self._is_open = True
        self._is_wanted = False
        self._queue: list[Hint] = []
        # Used only by its thread
        self._connection: Connection | None = None
        self._opened_at = 0.0
        self._is_listening = False
        self._sent_at = 0.0
        self._received_at = 0.0
        self._retry_at = 0.0

    # From any thread

    def send(self, hint: Hint) -> None:
        """Queue a hint for other processes. It is sent at once, or together with others."""
        with self._changing:
            self._queue.append(hint)
            is_first = len(self._queue) == 1
        if is_first:
            self._wake_thread()

    def listen(self, *, is_wanted: bool) -> None:
        """Begin or stop listening to other processes."""
        self._is_wanted = is_wanted
        self._wake_thread()

    def stop(self, seconds: float) -> None:
        """Send the queued hints within a time limit, and close the connection."""
        with self._changing:
            self._is_open = False
            thread = self._thread
        if thread is not None:
            self._waker.wake()
            thread.join(seconds)
            if thread.is_alive() and (connection := self._connection) is not None:
                connection.is_given_up = True
                thread.join(_GIVEN_UP_SECONDS)
        if thread is None or not thread.is_alive():
            self._waker.close()

    def abandon(self) -> None:
        """Drop the parent's connection in a forked child, without a message to the server and without a lock."""
        self._is_open = False
        self._changing = threading.Lock()
        self._thread = None
        self._waker.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            disown(connection)

    def _wake_thread(self) -> None:
        with self._changing:
            if not self._is_open:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="holdfast-postgres-hints", daemon=True)
                self._thread.start()
        self._waker.wake()

    # In its own thread

    def _serve(self) -> None:
        while self._is_open:
            self._waker.wait(self._connection, self._patience())
            self._do_due()
        if self._queue and not self._retry_at:  # for example a short-lived process that has just started a run
            self._do_due()
        self._disconnect()

    def _patience(self) -> float | None:
        """Seconds until something is due; None if only an event can make something due."""
        now = time.monotonic()
        if self._connection is None:
            is_needed = self._queue or self._is_wanted
            return max(0.0, self._retry_at - now) if is_needed else None
        if self._queue:
            # A single producer that waits for each answer must not wait for a batch. Many hints are worth batching.
            apart = SPARSE_APART_SECONDS if len(self._queue) <= SPARSE else APART_SECONDS
            return max(0.0, self._sent_at + apart - now)
        if self._is_wanted:
            return max(0.0, self._received_at + self._ping_seconds - now) if self._is_listening else 0.0
        return 0.0 if self._is_listening else max(0.0, self._sent_at + UNUSED_SECONDS - now)

    def _do_due(self) -> None:
        """Receive, and send what is due. After an error, close the connection; it is opened again with pauses."""
        try:
            self._receive()
            if self._patience() == 0.0 or not self._is_open:
                self._act()
        except (psycopg.Error, HoldfastError) as error:
            began = time.monotonic() if self._connection is None else self._opened_at
            self._retry_at = began + RETRY_SECONDS  # so at once, if the connection lasted longer than that
            if is_lost(error) and not is_timeout(error):
                self._connector.lost(error, self._opened_at)
            self._disconnect()

    def _act(self) -> None:
        if not self._queue and not self._is_wanted:
            self._disconnect()
            return
        connection = self._connected()
        if self._is_wanted != self._is_listening:
            self._switch(connection)
        if self._queue:
            self._notify(connection)
        elif time.monotonic() - self._received_at >= self._ping_seconds:
            connection.execute("select 1")  # a silent connection does not show that the server is gone
            self._received_at = time.monotonic()

    def _switch(self, connection: Connection) -> None:
        statement = sql.SQL("listen {}" if self._is_wanted else "unlisten {}")
        connection.execute(statement.format(sql.Identifier(self._channel)), prepare=False)
        self._is_listening = not self._is_listening
        self._received_at = time.monotonic()
        if self._is_listening:
            # Something may have changed before this connection listened.
            self._on_request()
            self._on_hint(_ANYTHING)

    def _notify(self, connection: Connection) -> None:
        with self._changing:
            hints, self._queue = self._queue, []
        try:
            connection.execute("select pg_notify(%s, %s)", (self._channel, _payload(self._sender, hints)))
        except psycopg.Error:
            with self._changing:
                self._queue = hints + self._queue
            raise
        self._sent_at = self._received_at = time.monotonic()

    def _receive(self) -> None:
        """Read the notifications that have arrived."""
        connection = self._connection
        if connection is None:
            return
        connection.pgconn.consume_input()
        payloads = []
        while (notification := connection.pgconn.notifies()) is not None:
            payloads.append(notification.extra)
        self._deliver(payloads)

    def _deliver(self, payloads: Sequence[bytes]) -> None:
        if not payloads:
            return
        self._received_at = time.monotonic()
        found = [_read(payload) for payload in payloads]
        if any(sender is None for sender, _ in found):
            self._on_request()
        if hints := [hint for sender, hint in found if sender != self._sender]:
            hint = _joined(hints)
            self._on_hint(hint if hint.is_elsewhere else msgspec.structs.replace(hint, is_foreign=True))

    def _connected(self) -> Connection:
        if self._connection is None:
            # Known before anything can fail, so that a failure closes it.
            self._connection = connection = self._connector.connect(_LIMITS)
            self._opened_at = self._received_at = self._sent_at = time.monotonic()
            if self._connector.address.is_prepared:
                connection.execute("set synchronous_commit = off")  # hints need not survive a crash
            connection.add_notify_handler(lambda one: self._deliver([one.payload.encode()]))
            self._retry_at = 0.0
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._is_listening = False
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


class _Waker:
    """Waits until a connection is readable or another thread calls `wake`."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        with suppress(OSError):  # the pipe is full of wake-ups, or closed
            os.write(self._in, b"!")

    def wait(self, connection: Connection | None, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        if connection is not None and connection.pgconn.socket >= 0:
            poll.register(connection.pgconn.socket, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)
        with suppress(OSError):  # the pipe is empty
            os.read(self._out, 4_096)

    def close(self) -> None:
        if self._in >= 0:
            os.close(self._in)
            os.close(self._out)
            self._in = self._out = -1


class _Notification(msgspec.Struct, array_like=True):
    """The id of a process, and a hint unless it is too long."""

    sender: str | None
    hint: Hint = _ANYTHING


_decode = msgspec.json.Decoder(_Notification).decode


def _payload(sender: str, hints: Sequence[Hint]) -> str:
    whole = msgspec.json.encode(_Notification(sender, _joined(hints)))
    return (whole if len(whole) <= PAYLOAD_LIMIT_BYTES else msgspec.json.encode([sender])).decode()


def _read(payload: bytes) -> tuple[str | None, Hint]:
    """Return the sender of a notification and its hint. SQL producers have no id."""
    try:
        found = _decode(payload)
    except (msgspec.DecodeError, ValueError):  # for example a `notify` from psql
        return None, _ANYTHING
    return found.sender or None, found.hint


def _joined(hints: Sequence[Hint]) -> Hint:
    """Join hints into one, which names nothing if one of them means anything."""
    if any(hint.is_elsewhere for hint in hints):
        return _ANYTHING
    news = News()
    for hint in hints:
        news.add(hint)
    return news.hint() or Hint()
