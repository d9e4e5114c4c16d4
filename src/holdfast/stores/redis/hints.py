"""Hints: messages on a channel of the server, for the listeners of this process. They come from all processes.

They have a connection of their own, which is made again for ever. A listener then gets an empty hint, because others
may have been missed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from holdfast.core.errors import HoldfastError
from holdfast.core.outage import pauses
from holdfast.stores.loops import call_on
from holdfast.stores.redis.connector import RedisConnector
from holdfast.stores.redis.conversation import asked, packed
from holdfast.stores.redis.errors import ConnectionLost, ServerError, Silence
from holdfast.stores.redis.loop_connection import LoopConnection

PING_SECONDS = 10.0
"""Time between two pings. They detect a dead connection that neither side has closed."""
FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 2.0

MISSED = b""
"""The hint after a break: anything may have changed."""

HintListener = Callable[[bytes], None]


class RedisHints:
    """The subscription to the channel of hints, and the listeners of this process."""

    def __init__(self, connector: RedisConnector, channel: str) -> None:
        self._connector = connector
        self._channel = channel
        self._listeners: tuple[tuple[asyncio.AbstractEventLoop, list[HintListener]], ...] = ()
        self._connection: LoopConnection | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe. When this returns, every later hint is heard."""
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
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        """End the subscription after its event loop was closed."""
        self._keeper = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def listen(self, heard: HintListener) -> Callable[[], None]:
        """Call a function on the running loop for each hint, until the returned function is called."""
        one = [heard]  # a list has its own identity, so one function can listen twice
        self._listeners += ((asyncio.get_running_loop(), one),)

        def stop() -> None:
            self._listeners = tuple(pair for pair in self._listeners if pair[1] is not one)

        return stop

    def tell(self, hint: bytes) -> None:
        """Give a hint to all listeners."""
        for loop, one in self._listeners:
            # One callback each: an error in one does not skip the next.
            call_on(loop, self._deliver, one, hint)

    def _deliver(self, one: list[HintListener], hint: bytes) -> None:
        if any(known is one for _, known in self._listeners):  # it may have stopped meanwhile
            one[0](hint)

    # The connection

    async def _subscribed(self, broken: asyncio.Event) -> LoopConnection:
        connection = await self._connector.connect(broke=lambda _: broken.set(), heard=self.tell)
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
            self.tell(MISSED)

    async def _wait(self, connection: LoopConnection, broken: asyncio.Event) -> None:
        """Wait until the connection is lost."""
        while not broken.is_set():
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await broken.wait()
            except TimeoutError:
                with suppress(ConnectionLost, Silence):
                    await connection.send(packed("PING"))
