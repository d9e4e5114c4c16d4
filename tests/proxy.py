"""A proxy that breaks connections on command: it cuts, refuses, delays or swallows, and heals.

    with FaultProxy("127.0.0.1", 5432) as proxy:
        connect(proxy.host, proxy.port)
        proxy.cut()                       # every connection breaks, now
        proxy.black_hole()                # connections stay, but nothing arrives
        proxy.heal()

It works in its own thread. Each method returns when its effect is in place. It does not interpret the traffic; a `Tap`
does, if there is one: see `tests.postgres.proxy` and `tests.redis.proxy`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from inspect import CORO_CREATED, getcoroutinestate
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast

from holdfast.testing.patience import GUARD_SECONDS

_CHUNK_BYTES = 1 << 16

T = TypeVar("T")

_LAST_ROUNDS = 20
"""Rounds of the event loop that the end takes. A connection that was just accepted gets its task some rounds later."""

Request = TypeVar("Request")

CutMoment = Literal["before", "lost", "after"]
"""When to cut: before the request reaches the server, with its answer lost, or after its answer was delivered."""


class CutRule(Generic[Request]):
    """A rule of a tap for cutting connections around requests. It ends after the requested number of cuts."""

    what = "requests"
    """The word for what it cuts, in messages."""

    def __init__(self, matches: Callable[[Request], bool], moment: CutMoment, *, count: int, skip: int) -> None:
        self.moment = moment
        self.hits = 0
        """Number of connections that it has cut."""
        self._matches = matches
        self._remaining = count
        self._skip = skip
        self._lock = threading.Lock()
        self._done = threading.Event()

    def wait(self, seconds: float = GUARD_SECONDS) -> None:
        """Wait until it has made all its cuts.

        Raises:
            TimeoutError: It has not, in time.

        """
        if not self._done.wait(seconds):
            raise TimeoutError(f"{self._remaining} {self.what} are still to be cut after {seconds} seconds")

    def end(self) -> None:
        """Stop cutting."""
        with self._lock:
            self._remaining = 0

    def takes(self, request: Request) -> bool:
        """True if this request, which is about to be executed, is to be cut."""
        with self._lock:
            if self._remaining == 0 or not self._matches(request):
                return False
            if self._skip > 0:
                self._skip -= 1
                return False
            self._remaining -= 1
            return True

    def has_cut(self) -> None:
        self.hits += 1
        if self._remaining == 0:
            self._done.set()


@dataclass(frozen=True)
class TapVerdict:
    """A decision about some bytes: forward these, send those back, and then, perhaps, end the connection.

    A cut connection ends with an error for the client. The server still gets what was forwarded before.
    """

    forward: bytes = b""
    reply: bytes = b""
    end: Literal["no", "close", "cut"] = "no"


class Tap:
    """Reads the traffic of one connection, and may decide what passes. This one lets everything pass."""

    def from_client(self, data: bytes) -> TapVerdict:
        return TapVerdict(data)

    def from_server(self, data: bytes) -> TapVerdict:
        return TapVerdict(data)


class FaultProxy:
    """A proxy between clients and one server. Use it as a context manager, or `start` and `close` it.

    With `encryption`, clients connect by TLS; the server does not notice.
    """

    def __init__(
        self, host: str, port: int, *, tap: Callable[[], Tap] = Tap, encryption: ssl.SSLContext | None = None
    ) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        """The address for clients; known after the start."""
        self.accepted = 0
        """Number of connections that clients have made so far."""
        self._target = (host, port)
        self._tap = tap
        self._encryption = encryption
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._weather = _Weather()

    # Faults

    def cut(self) -> int:
        """Reset every connection, on both sides, and return their number. New ones are accepted."""
        return self._do(self._cut())

    def refuse(self) -> None:
        """Refuse new connections, as a host without the server does. Existing ones stay."""
        self._do(self._stop_listening())

    def redirect(self, host: str, port: int) -> None:
        """Connect new clients to another server, as an address does after a failover. Existing connections stay."""
        self._target = (host, port)

    def delay(self, *, to_server: float = 0.0, to_client: float = 0.0) -> None:
        """Delay all traffic by this many seconds, from now on."""
        self._do(self._change(to_server, to_client, is_flowing=self._weather.flowing.is_set()))

    def black_hole(self) -> None:
        """Accept data and connections, deliver nothing, close nothing. The data arrives on `heal`."""
        self._do(self._change(self._weather.to_server, self._weather.to_client, is_flowing=False))

    def heal(self) -> None:
        """End all of the above, and accept connections again."""
        self._do(self._change(0.0, 0.0, is_flowing=True))
        self._do(self._listen())

    @property
    def connections(self) -> int:
        """Number of current connections."""
        return len(self._links)

    # Lifecycle

    def start(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def close(self) -> None:
        """Cut everything, and release the port."""
        if not self._thread.is_alive():
            return
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(GUARD_SECONDS)

    # In its own thread

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._take, self.host, self.port, ssl=self._encryption)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            for one in self._listener.sockets:
                self._loop.remove_reader(one.fileno())
            for _ in range(_LAST_ROUNDS):
                # asyncio never closes a connection that it has accepted, if its server is closed a moment later.
                await asyncio.sleep(0)
            self._listener.close()
            self._listener = None

    async def _change(self, to_server: float, to_client: float, *, is_flowing: bool) -> None:
        self._weather.to_server = to_server
        self._weather.to_client = to_client
        if is_flowing:
            self._weather.flowing.set()
        else:
            self._weather.flowing.clear()

    async def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    async def _end(self) -> None:
        await self._stop_listening()
        for _ in range(_LAST_ROUNDS):
            await self._cut()
            # Also those tasks of asyncio that accept a connection or negotiate its encryption. A task that has not
            # started could not close its connection: it is cancelled in a later round.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            tasks = [task for task in others if getcoroutinestate(cast("Any", task.get_coro())) != CORO_CREATED]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        client = _Side(reader, writer)
        try:
            await self._carry(client)
            await client.closed()
        except asyncio.CancelledError:
            pass  # the proxy is being closed
        finally:
            client.reset()

    async def _carry(self, client: _Side) -> None:
        try:
            server = _Side(*await asyncio.open_connection(*self._target))
        except OSError:
            return
        link = _Link(client, server, self._tap(), self._weather)
        self._links.add(link)
        try:
            await link.carry()
            self._links.discard(link)
            await server.closed()
        finally:
            self._links.discard(link)
            server.reset()


class _Weather:
    """The common state of all connections of a proxy."""

    def __init__(self) -> None:
        self.to_server = 0.0
        self.to_client = 0.0
        self.flowing = asyncio.Event()
        self.flowing.set()


class _Side:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def closed(self) -> None:
        """Wait until all that was written before its close is delivered. Return at once if nothing closed it."""
        if self.writer.is_closing():
            with suppress(OSError):
                await self.writer.wait_closed()

    def reset(self) -> None:
        """Close it at once, with a reset: the other side gets an error, not an end."""
        if not self.writer.is_closing():
            peer: socket.socket = self.writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class _Link:
    """A client's connection and its connection to the server, with bytes under way between them."""

    def __init__(self, client: _Side, server: _Side, tap: Tap, weather: _Weather) -> None:
        self._client = client
        self._server = server
        self._tap = tap
        self._weather = weather
        self._pumps: list[asyncio.Task[None]] = []

    def cut(self) -> None:
        """Close both sides at once with an error."""
        self._client.reset()
        self._server.reset()
        self._stop()

    def _end(self, how: Literal["close", "cut"]) -> None:
        """Deliver to the server what was forwarded, and to the client too unless it is cut."""
        self._server.writer.close()
        if how == "cut":
            self._client.reset()
        else:
            self._client.writer.close()
        self._stop()

    def _stop(self) -> None:
        for pump in self._pumps:
            pump.cancel()

    async def carry(self) -> None:
        """Forward until one side has closed and the other knows, or the connection is cut."""
        up: asyncio.Queue[tuple[float, TapVerdict]] = asyncio.Queue()
        down: asyncio.Queue[tuple[float, TapVerdict]] = asyncio.Queue()
        self._pumps = [
            asyncio.create_task(work)
            for work in (
                self._read(self._client, self._tap.from_client, up, lambda: self._weather.to_server),
                self._write(up, self._server, self._client),
                self._read(self._server, self._tap.from_server, down, lambda: self._weather.to_client),
                self._write(down, self._client, self._server),
            )
        ]
        try:
            await asyncio.gather(*self._pumps, return_exceptions=True)
        except asyncio.CancelledError:
            self.cut()
            raise

    async def _read(
        self,
        side: _Side,
        judge: Callable[[bytes], TapVerdict],
        queue: asyncio.Queue[tuple[float, TapVerdict]],
        delay: Callable[[], float],
    ) -> None:
        """Read incoming data, also while nothing is delivered."""
        clock = asyncio.get_running_loop().time
        verdict = TapVerdict()
        while verdict.end == "no":
            try:
                data = await side.reader.read(_CHUNK_BYTES)
            except OSError:
                verdict = TapVerdict(end="cut")
            else:
                verdict = judge(data) if data else TapVerdict(end="close")
            await queue.put((clock() + delay(), verdict))

    async def _write(self, queue: asyncio.Queue[tuple[float, TapVerdict]], side: _Side, sender: _Side) -> None:
        """Deliver data when it is due."""
        clock = asyncio.get_running_loop().time
        while True:
            due, verdict = await queue.get()
            await asyncio.sleep(max(0.0, due - clock()))
            await self._weather.flowing.wait()
            try:
                side.writer.write(verdict.forward)
                await side.writer.drain()
                sender.writer.write(verdict.reply)
                await sender.writer.drain()
            except OSError:
                self.cut()
                return
            if verdict.end != "no":
                self._end(verdict.end)
                return
