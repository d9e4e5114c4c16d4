"""A fault proxy that reads the protocol of Redis, and can cut a connection exactly around a request.

    with RedisProxy(server.url) as proxy:
        rule = proxy.cut_around("evalsha", "lost", skip=1)
        redis.Redis.from_url(proxy.url)   # its second script is executed, but the answer is lost
        rule.wait()

It knows where each request and each answer ends, in RESP 2 and 3, and tells messages of subscriptions from answers.
"""

from __future__ import annotations

import re
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import hiredis

from holdfast.core.errors import InvalidRequest
from tests.proxy import CutMoment, CutRule, FaultProxy, Tap, TapVerdict

Command = list[bytes]
"""A request: the name of the command, and its arguments."""

_DEFAULT_PORT = 6379
_INCOMPLETE = object()
_SUBSCRIBE = {b"subscribe", b"psubscribe", b"ssubscribe"}
_UNSUBSCRIBE = {b"unsubscribe", b"punsubscribe", b"sunsubscribe"}
_UNASKED = _UNSUBSCRIBE | {b"message", b"pmessage", b"smessage"}
"""Messages to a subscriber that are not counted as answers. How many answer an `unsubscribe` depends on the past."""
_NOT_RESP = b"-ERR the proxy reads requests in RESP only\r\n"


class RedisProxy(FaultProxy):
    """A fault proxy in front of the server of a URL; `url` is the same namespace through it.

    With `encryption`, its own URL is `rediss://…`, and the one of the server is not.
    """

    def __init__(self, url: str, *, encryption: ssl.SSLContext | None = None) -> None:
        self._parts = urlsplit(url)
        self.commands: Counter[str] = Counter()
        """Number of requests so far, by the name of the command in capitals."""
        self._rules: list[CutRule[Command]] = []
        super().__init__(*_address(url), tap=lambda: _RedisTap(self._taking), encryption=encryption)

    @property
    def url(self) -> str:
        user, at, _ = self._parts.netloc.rpartition("@")
        scheme = "redis" if self._encryption is None else "rediss"
        return urlunsplit(self._parts._replace(scheme=scheme, netloc=f"{user}{at}{self.host}:{self.port}"))

    @property
    def requests(self) -> int:
        """Number of requests so far, on all connections, with those that a client sends to begin a connection."""
        return self.commands.total()

    def redirect_to(self, url: str) -> None:
        """Connect new clients to the server of another URL, as an address does after a failover."""
        self.redirect(*_address(url))

    def cut_around(
        self,
        matching: str | Callable[[Command], bool] = "",
        moment: CutMoment = "lost",
        *,
        count: int = 1,
        skip: int = 0,
    ) -> CutRule[Command]:
        """Cut the connection around the next matching request; requests after it never reach the server.

        The moment is `before` the request reaches the server, so that nothing happens; or when the server has carried
        it out, with the answer `lost`; or `after` the answer has been delivered. `matching` is a regular expression for
        the words of the request, or a function of it; the first `skip` requests pass, then `count` of them are cut,
        each with its own connection only.
        """
        pattern = re.compile(matching, re.IGNORECASE) if isinstance(matching, str) else None
        matches = matching if pattern is None else lambda command: pattern.search(_text(command)) is not None
        assert callable(matches)
        rule = CutRule(matches, moment, count=count, skip=skip)
        self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """End all faults and rules, and accept connections again. The target stays."""
        for rule in self._rules:
            rule.end()
        self._rules.clear()
        super().heal()

    def _taking(self, command: Command) -> CutRule[Command] | None:
        """Count a request. Return the rule that cuts around it, if any."""
        self.commands[command[0].decode(errors="replace").upper()] += 1
        return next((rule for rule in tuple(self._rules) if rule.takes(command)), None)


class _RedisTap(Tap):
    """One connection: its awaited answers, and the rule that is going to cut it."""

    def __init__(self, taking: Callable[[Command], CutRule[Command] | None]) -> None:
        self._taking = taking
        self._from_client = _Stream()
        self._from_server = _Stream()
        self._asked = 0
        self._answered = 0
        self._is_subscriber = False
        self._cutting: CutRule[Command] | None = None

    def from_client(self, data: bytes) -> TapVerdict:
        forward = b""
        try:
            for raw, command in self._from_client.messages(data):
                if self._cutting is not None:
                    break  # the connection ends with the answer to an earlier request
                rule = self._taking(command)
                if rule is not None and rule.moment == "before":
                    rule.has_cut()
                    return TapVerdict(forward, end="cut")
                self._cutting = rule
                self._asked += self._answers_to(command)
                forward += raw
        except hiredis.ProtocolError:
            return TapVerdict(forward, _NOT_RESP, end="close")
        return TapVerdict(forward)

    def from_server(self, data: bytes) -> TapVerdict:
        forward = b""
        for raw, message in self._from_server.messages(data):
            self._answered += self._is_answer(message)
            is_last = self._answered == self._asked
            rule = self._cutting
            if rule is None or rule.moment == "after" or not is_last:
                forward += raw
            if rule is not None and is_last:
                rule.has_cut()
                # Closed, not cut: the client gets the answer, and then the end of the connection.
                return TapVerdict(forward, end="close" if rule.moment == "after" else "cut")
        return TapVerdict(forward)

    def _answers_to(self, command: Command) -> int:
        name = command[0].lower()
        if name in _SUBSCRIBE:
            self._is_subscriber = True
            return len(command) - 1  # one for each channel
        return 0 if name in _UNSUBSCRIBE else 1

    def _is_answer(self, message: Any) -> bool:
        if isinstance(message, hiredis.PushNotification):
            return message[0] in _SUBSCRIBE
        # In RESP 2, what a subscriber is told looks like an answer.
        return not (self._is_subscriber and isinstance(message, list) and message and message[0] in _UNASKED)


class _Stream:
    """Bytes of one direction, split into messages."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._raw = bytearray()

    def messages(self, data: bytes) -> Iterator[tuple[bytes, Any]]:
        """Yield all messages that these bytes complete, each as bytes and as a value."""
        # Every message ends with a line, so the reader gets one line at a time: it does not tell where a message ends.
        for line in data.splitlines(keepends=True):
            self._raw += line
            self._reader.feed(line)
            message = self._reader.gets()
            if message is not _INCOMPLETE:
                raw = bytes(self._raw)
                self._raw.clear()
                yield raw, message


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "redis" or parts.hostname is None:
        raise InvalidRequest("the URL of a server behind a proxy must be redis:// and name its host")
    return parts.hostname, parts.port or _DEFAULT_PORT


def _text(command: Command) -> str:
    return b" ".join(command).decode("utf-8", "replace")
