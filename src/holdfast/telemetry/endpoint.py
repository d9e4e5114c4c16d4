"""The endpoint: a small HTTP server for metrics and for the health check of a worker.

It answers only `GET /metrics` and `GET /healthz`, and closes the connection after each response.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, cast

from holdfast.config.secret import DEFAULT_HOST, Address
from holdfast.core.errors import InvalidRequest

_HEAD_LIMIT = 8 * 1024
_SECONDS = 5.0
_PLAIN = "text/plain; charset=utf-8"

_log = logging.getLogger("holdfast.metrics")


class Answer(NamedTuple):
    """An HTTP response."""

    status: str
    text: str
    type: str = _PLAIN


class Endpoint:
    """Serves `text` at `/metrics`, with the given content type. If a token is set, clients must present it."""

    def __init__(
        self,
        text: Callable[[], Awaitable[str]],
        content_type: str,
        is_healthy: Callable[[], bool],
        token: str | None = None,
    ) -> None:
        self._text = text
        self._content_type = content_type
        self._is_healthy = is_healthy
        self._token = token
        self._talks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self, address: Address) -> AsyncIterator[Address]:
        """Listen until the block ends. Yields the address; for port 0, with the port that the system chose."""
        if not address.is_local and self._token is None:
            raise InvalidRequest(
                f"other machines could read the metrics at {address}: set HOLDFAST_METRICS_TOKEN, which clients then "
                f"have to present as a bearer token, or listen on {DEFAULT_HOST}"
            )
        try:
            server = await asyncio.start_server(self._talk, address.host, address.port, limit=_HEAD_LIMIT)
        except OSError as error:
            raise InvalidRequest(
                f"cannot listen on {address}: {error.strerror or error}; choose another port"
            ) from error
        try:
            yield Address(address.host, server.sockets[0].getsockname()[1])
        finally:
            server.close()
            # A client that is slow, or silent, must not delay the end of a worker.
            for talk in self._talks:
                talk.cancel()
            await asyncio.gather(*self._talks, return_exceptions=True)
            await server.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)
        try:
            # Do not wait for a client that connects and sends nothing, or does not read the response.
            async with asyncio.timeout(_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, headers = _parsed(head)
                answer = await self._answer(method, path, headers)
                writer.write(_encoded(answer, has_body=method != "HEAD"))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        if path not in ("/metrics", "/healthz"):
            return Answer("404 Not Found", "not found; try /metrics or /healthz\n")
        if method not in ("GET", "HEAD"):
            return Answer("405 Method Not Allowed", "only GET is allowed\n")
        if path == "/healthz":
            if self._is_healthy():
                return Answer("200 OK", "ok\n")
            return Answer("503 Service Unavailable", "the worker has not renewed its leases in time\n")
        if not self._may_read(headers.get("authorization", "")):
            return Answer("401 Unauthorized", "present the token: Authorization: Bearer …\n")
        try:
            return Answer("200 OK", await self._text(), self._content_type)
        except Exception:  # noqa: BLE001 - no error of the metrics may stop the worker
            _log.exception("collecting the metrics failed")
            return Answer("500 Internal Server Error", "see the log of the worker\n")

    def _may_read(self, authorization: str) -> bool:
        if self._token is None:
            return True
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())


def _parsed(head: str) -> tuple[str, str, dict[str, str]]:
    """Return method, path and headers of a request. A malformed request gets an empty path, and so a 404."""
    first, *lines = head.split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        return "GET", "", {}
    pairs = (line.partition(":") for line in lines)
    return words[0], words[1].partition("?")[0], {name.strip().lower(): value.strip() for name, _, value in pairs}


def _encoded(answer: Answer, *, has_body: bool) -> bytes:
    body = answer.text.encode()
    lines = (
        f"HTTP/1.1 {answer.status}",
        f"Content-Type: {answer.type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "\r\n",
    )
    return "\r\n".join(lines).encode() + (body if has_body else b"")
