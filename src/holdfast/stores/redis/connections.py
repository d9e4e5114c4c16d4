"""Connections to the server: one for the event loop, and a blocking one for the thread that renews leases.

What they send is a *conversation*: commands and replies as a generator, so that both kinds of connection share one
text. A conversation yields packed commands and gets their replies, in order. An error reply is an item like others.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from hiredis import HiredisError, Reader

from holdfast.stores.redis.errors import ConnectionLost, ServerError, Silence
from holdfast.stores.redis.scripts import Argument, LuaScript, pack

T = TypeVar("T")

Conversation = Generator[list[bytes], list[Any], T]

PENDING = object()
"""Returned by a reader while a reply is incomplete."""

_NO_SCRIPT = "NOSCRIPT"


def reply_reader() -> Reader:
    """Return a reader of replies. Texts stay bytes, and an error is an object."""
    return Reader(replyError=ServerError, notEnoughData=PENDING)


def packed(*words: Argument) -> bytes:
    """Return a command as the server reads it."""
    return pack(words)


def asked(*commands: bytes) -> Conversation[list[Any]]:
    """Send commands together. Raise the first error among their replies."""
    replies = yield list(commands)
    for reply in replies:
        if isinstance(reply, ServerError):
            raise reply
    return replies


def scripted(script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Conversation[Any]:
    """Run a script. A server that does not know it gets its text."""
    (reply,) = yield [script.call(keys, arguments)]
    if is_unknown_script(reply):
        (reply,) = yield [script.whole_call(keys, arguments)]
    if isinstance(reply, ServerError):
        raise reply
    return reply


def is_unknown_script(reply: object) -> bool:
    """True if the server does not have a script. It has done nothing."""
    return isinstance(reply, ServerError) and reply.code == _NO_SCRIPT


class LoopEnd:
    """Calls `action` when the running loop is shut down, after all of its tasks have ended, unless it was forgotten.

    At that time `asyncio.run` closes the asynchronous generators of its loop, and so do the runners of other libraries.
    Here a generator waits for it at its only `yield`.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self._generator = self._wait()
        _finish(self._generator.__anext__())  # now the loop knows it

    def forget(self) -> None:
        """Do not call the action."""
        if self._action is not None:
            self._action = None
            _finish(self._generator.aclose())

    async def _wait(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            action, self._action = self._action, None
            if action is not None:
                action()


def _finish(step: Coroutine[Any, Any, None]) -> None:
    """Execute a step of a generator at once. It awaits nothing."""
    try:
        step.send(None)
    except StopIteration:
        return
    raise AssertionError("the generator awaits something")


_MESSAGE = [b"message"]


class LoopConnection(asyncio.Protocol):
    """One connection to the server.

    `on_break` is called once if it ends without `close`. With `on_message`, it may be subscribed to a channel; each
    message goes there. All methods are for its loop. When the loop is shut down, the connection is closed.
    """

    def __init__(
        self,
        answer_seconds: float,
        *,
        on_break: Callable[[Exception], None],
        on_message: Callable[[bytes], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened_at = time.monotonic()
        self._answer_seconds = answer_seconds
        self._on_break = on_break
        self._on_message = on_message
        self._reader = reply_reader()
        self._transport: asyncio.Transport | None = None
        self._loop_end: LoopEnd | None = None
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._end: Exception | None = None
        self.was_busy = False
        """True if it ended while calls waited for replies."""

    @property
    def is_open(self) -> bool:
        return self._end is None

    # For callers

    def send(self, command: bytes) -> asyncio.Future[Any]:
        """Send a command and return the future of its reply. An error reply is a result, too.

        If the connection ends first, the future fails with `ConnectionLost` or `Silence`.
        """
        future = self._expect()
        if self._transport is not None and self._end is None:
            self._transport.write(command)
        return future

    async def converse(self, conversation: Conversation[T]) -> T:
        """Execute a conversation, and return what it returns."""
        try:
            commands = next(conversation)
            while True:
                futures = self._send_all(commands)
                # All fail together, and all errors are collected: asyncio would report one that is not.
                outcomes = await asyncio.gather(*futures, return_exceptions=True)
                if failed := [error for future in futures if (error := future.exception()) is not None]:
                    # A server that refuses the connection says why, and closes it.
                    raise next((outcome for outcome in outcomes if isinstance(outcome, ServerError)), failed[0])
                commands = conversation.send(outcomes)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def drain(self, seconds: float) -> None:
        """Wait for the replies to all commands sent so far, within a time limit."""
        if self._waiting:
            await asyncio.wait([self._waiting[-1][0]], timeout=seconds)

    def close(self) -> None:
        """End the connection. Calls without an answer fail. Its loop may be closed already."""
        self._finish(ConnectionLost("it was closed"))

    # For the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # not a subclass on every loop
        self._loop_end = LoopEnd(self.close)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not PENDING:
                self._received(reply)
        except HiredisError as error:
            self._lose(ConnectionLost(f"the replies are not those of a Redis server: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(ConnectionLost(str(exc) if exc is not None else "the server closed the connection"))

    # Replies

    def _send_all(self, commands: list[bytes]) -> list[asyncio.Future[Any]]:
        futures = [self._expect() for _ in commands]
        if self._transport is not None and self._end is None:
            # One write: if the server has refused the connection, a second one would fail before we read why.
            self._transport.write(b"".join(commands))
        return futures

    def _expect(self) -> asyncio.Future[Any]:
        """Return the future of the next reply."""
        future = self._loop.create_future()
        if self._end is not None:
            future.set_exception(type(self._end)(*self._end.args))
            return future
        self._waiting.append((future, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(self._answer_seconds, self._check_silence)
        return future

    def _received(self, reply: Any) -> None:
        if self._on_message is not None and isinstance(reply, list) and reply[:1] == _MESSAGE:
            self._on_message(reply[2])
        elif self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():  # its caller may have been cancelled
                future.set_result(reply)
        else:  # the server refuses a connection without a command: it has too many, or is in protected mode
            self._lose(reply if isinstance(reply, Exception) else ConnectionLost(f"unexpected reply {reply!r}"))

    def _check_silence(self) -> None:
        """Give the connection up if the oldest call has waited too long."""
        self._watch = None
        if not self._waiting:
            return
        left = self._waiting[0][1] + self._answer_seconds - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._check_silence)
        else:
            self._lose(Silence(f"no reply for {self._answer_seconds:g} s"))

    def _lose(self, error: Exception) -> None:
        if self._end is None:
            self._finish(error)
            self._on_break(error)

    def _finish(self, error: Exception) -> None:
        if self._end is not None:
            return
        self._end = error
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._loop_end is not None:
            self._loop_end.forget()
        waiting, self._waiting = self._waiting, deque()
        self.was_busy = bool(waiting)
        if self._loop.is_closed():
            self._hang_up()
            return
        if self._transport is not None:
            self._transport.abort()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(type(error)(*error.args))  # one each: every caller adds its own traceback

    def _hang_up(self) -> None:
        """Close the socket without the loop, which is closed. No caller is left."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with suppress(OSError, TypeError):  # it is not connected, or the loop has closed it itself
                transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


_CHUNK_BYTES = 1 << 16


class BlockingConnection:
    """One connection with one caller at a time. After an error it is closed."""

    def __init__(self, connected: socket.socket, answer_seconds: float) -> None:
        self._socket = connected
        self._answer_seconds = answer_seconds
        self._reader = reply_reader()
        self.opened_at = time.monotonic()
        self.is_open = True

    def converse(self, conversation: Conversation[T]) -> T:
        """Execute a conversation, and return what it returns.

        Raises:
            ConnectionLost, Silence: The connection ended, or the server did not answer in time. It is closed.

        """
        try:
            commands = next(conversation)
            while True:
                commands = conversation.send(self._replies(commands))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close it. Another thread that waits for a reply gets an error."""
        self.is_open = False
        with suppress(OSError):  # the connection has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _replies(self, commands: list[bytes]) -> list[Any]:
        until = time.monotonic() + self._answer_seconds
        replies: list[Any] = []
        try:
            self._socket.settimeout(self._answer_seconds)
            self._socket.sendall(b"".join(commands))
            while len(replies) < len(commands):
                replies.append(self._reply(until))
        except TimeoutError as error:
            self.close()
            raise Silence(f"no reply for {self._answer_seconds:g} s") from error
        except (OSError, ssl.SSLError, HiredisError, ValueError) as error:  # ValueError: closed by another thread
            self.close()
            if replies and isinstance(replies[0], ServerError):
                raise replies[0] from error  # a server that refuses the connection says why, and closes it
            raise ConnectionLost(str(error) or "the connection was closed") from error
        return replies

    def _reply(self, until: float) -> Any:
        while (reply := self._reader.gets()) is PENDING:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            data = self._socket.recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply
