"""The connector: makes the connections of a store, and knows whether the server can be reached."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.reachability import Reachability
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.connections import BlockingConnection, Conversation, LoopConnection
from holdfast.stores.redis.errors import ConnectionLost, HandshakeBroken, ServerError, Silence, unavailable

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""Time limit for a reply to a caller on the event loop. The largest scripts take a small part of a second."""
BLOCKING_SECONDS = 4.0
"""Time limit of a renewal for a connection, and then for a reply. A lease lasts longer."""

FIRST_PAUSE_SECONDS = 0.05

SEND_BUFFER_BYTES = 256 * 1024
KEEPALIVE_IDLE_SECONDS = 5
KEEPALIVE_APART_SECONDS = 2
KEEPALIVE_COUNT = 3
UNACKNOWLEDGED_SECONDS = 10

_FAILURES = (OSError, ServerError, HandshakeBroken, Silence, StoreUnavailable)


class RedisConnector:
    """Opens connections. During an outage it tries the server with growing pauses and fails at once in between.

    `greeting` is what every new connection says before anything else.
    """

    def __init__(self, address: RedisAddress, greeting: Callable[[], Conversation[object]]) -> None:
        self.address = address
        self._greeting = greeting
        self._tls = address.tls.context() if address.tls is not None else None
        self._reachability = Reachability("Redis server", address.shown, first_pause_seconds=FIRST_PAUSE_SECONDS)

    async def connect(
        self,
        *,
        on_break: Callable[[Exception], None],
        on_message: Callable[[bytes], None] | None = None,
        greeting: Conversation[object] | None = None,
    ) -> LoopConnection:
        """Return a new connection on the running loop. With a `greeting` of its own, it is tried in any case.

        Raises:
            StoreUnavailable: The server cannot be reached or used.

        """
        if greeting is None:
            self._reachability.check()
        address, is_greeted = self.address, False

        def note_break(error: Exception) -> None:
            if is_greeted:
                on_break(error)

        def protocol() -> LoopConnection:
            return LoopConnection(ANSWER_SECONDS, on_break=note_break, on_message=on_message)

        with self._attempt():
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    protocol,
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls is not None else None,
                )
            if (plain := transport.get_extra_info("socket")) is not None:
                _keep_alive(plain)
                # The event loop copies at most this many bytes of a large command at once.
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            with _greeted(connection):
                await connection.converse(greeting or self._greeting())
            is_greeted = True
        return connection

    def connect_blocking(self) -> BlockingConnection:
        """Return a new blocking connection, for one thread. It is tried even in the pauses of an outage.

        Raises:
            StoreUnavailable: The server cannot be reached or used.

        """
        address = self.address
        with self._attempt():
            connected = socket.create_connection((address.host, address.port), BLOCKING_SECONDS)
            try:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _keep_alive(connected)
                if self._tls is not None:
                    connected = self._tls.wrap_socket(connected, server_hostname=address.host)
            except BaseException:
                connected.close()
                raise
            connection = BlockingConnection(connected, BLOCKING_SECONDS)
            with _greeted(connection):
                connection.converse(self._greeting())
        return connection

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Record if an attempt to connect has worked or failed, and translate its error."""
        try:
            yield
        except _FAILURES as error:
            raise self._reachability.failed(unavailable(self.address, error)) from error
        self._reachability.worked()

    def lost(self, error: Exception, opened_at: float) -> None:
        """Record that a connection broke, which was opened at this instant of the monotonic clock."""
        self._reachability.lost(unavailable(self.address, error), opened_at)

    def translated(self, error: BaseException) -> BaseException:
        """Return the error to raise to the caller, `from` the given one."""
        translated = unavailable(self.address, error)
        return self._reachability.noted(translated) if isinstance(error, ConnectionLost | Silence) else translated


@contextmanager
def _greeted(connection: LoopConnection | BlockingConnection) -> Iterator[None]:
    """Close a new connection whose greeting fails."""
    try:
        yield
    except ConnectionLost as error:
        raise HandshakeBroken(*error.args) from error
    except BaseException:
        connection.close()
        raise


def _keep_alive(connected: socket.socket) -> None:
    """Let the system find out that the other side is gone, also while nothing is sent."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    settings = {
        "TCP_KEEPIDLE": KEEPALIVE_IDLE_SECONDS,
        "TCP_KEEPINTVL": KEEPALIVE_APART_SECONDS,
        "TCP_KEEPCNT": KEEPALIVE_COUNT,
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_SECONDS * 1_000,
    }
    for name, value in settings.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
