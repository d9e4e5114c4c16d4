"""A blocking connection, for the thread that renews leases: it works even while the event loop is busy."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from typing import Any, TypeVar

from hiredis import HiredisError

from holdfast.stores.redis.conversation import PENDING, Conversation, reply_reader
from holdfast.stores.redis.errors import ConnectionLost, ServerError, Silence

T = TypeVar("T")

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
        """Carry out a conversation, and return what it returns.

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
                raise replies[0] from error  # a server that refuses the connection tells why, and closes it
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
