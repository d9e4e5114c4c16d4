"""Hints: messages on a channel of the server, for the listeners of this process. They come from all processes.

They have a connection of their own, which is made again for ever. A listener then gets an empty hint, because others
may have been missed meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from holdfast.core.errors import HoldfastError
from holdfast.core.outage import pauses
from holdfast.stores.loops import Listeners
from holdfast.stores.redis.connections import LoopConnection, asked, packed
from holdfast.stores.redis.connector import RedisConnector
from holdfast.stores.redis.errors import ConnectionLost, ServerError, Silence

PING_SECONDS = 10.0
"""Time between two pings. They detect a dead connection that neither side has closed."""
FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 2.0

MISSED = b""
"""The hint after a break: anything may have changed."""


class RedisHints(Listeners[bytes]):
    """The subscription to the channel of hints, and the listeners of this process."""

    def __init__(self, connector: RedisConnector, channel: str) -> None:
        super().__init__()
        self._connector = connector
        self._channel = channel
        self._connection: LoopConnection | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe. When this returns, every later hint arrives."""
        broken = asyncio.Event()
        self._connection = await self._subscribed(broken)
        self._keeper = asyncio.create_task(self._keep(self._connection, broken), name="holdfast-redis-hints")

    async def stop(self) -> None:
        """End the subscription. Listeners stay."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
        self.forget()

    def forget(self) -> None:
        """End the subscription after its event loop was closed."""
        self._keeper = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # The connection

    async def _subscribed(self, broken: asyncio.Event) -> LoopConnection:
        connection = await self._connector.connect(on_break=lambda _: broken.set(), on_message=self.send)
        try:
            await connection.converse(asked(packed("SUBSCRIBE", self._channel)))
        except (ConnectionLost, Silence, ServerError) as error:
            connection.close()
            raise self._connector.translated(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    async def _keep(self, connection: LoopConnection, broken: asyncio.Event) -> None:
        """Ping the server, and subscribe again after each loss."""
        while True:
            await self._wait(connection, broken)
            connection.close()
            waits = pauses(FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS)
            while True:
                broken = asyncio.Event()
                try:
                    connection = await self._subscribed(broken)
                    break
                except HoldfastError:  # the connector logs the outage
                    await asyncio.sleep(next(waits))
            self._connection = connection
            self.send(MISSED)

    async def _wait(self, connection: LoopConnection, broken: asyncio.Event) -> None:
        """Wait until the connection is lost."""
        while not broken.is_set():
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await broken.wait()
            except TimeoutError:
                with suppress(ConnectionLost, Silence):
                    await connection.send(packed("PING"))
