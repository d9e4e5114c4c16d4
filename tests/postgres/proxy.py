"""A fault proxy that reads the protocol of Postgres, and can cut a connection exactly around a commit.

    with PostgresProxy(server.url) as proxy:
        rule = proxy.cut_around_commit("holdfast.checkpoint", before=False)
        psycopg.connect(proxy.url)        # its next checkpoint is executed, but the answer is lost
        rule.wait()

It reads unencrypted traffic only: it answers a request for encryption with a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from holdfast.core.errors import InvalidRequest
from tests.proxy import CutRule, FaultProxy, Tap, TapVerdict

_ENCRYPTION_REQUESTS = {80877103, 80877104}  # for TLS and for GSSAPI, which precede the startup message
_DEFAULT_PORT = 5432


class CommitRule(CutRule[str]):
    """A rule for cutting around commits: before the commit reaches the server, or with its answer lost."""

    what = "commits"

    def __init__(self, matches: Callable[[str], bool], *, before: bool, count: int, skip: int) -> None:
        super().__init__(matches, "before" if before else "lost", count=count, skip=skip)
        self.before = before


class PostgresProxy(FaultProxy):
    """A fault proxy in front of the server of a URL; `url` is the same database through it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        if self._parts.hostname is None:
            raise InvalidRequest("the URL of a server behind a proxy must name its host")
        self._rules: list[CommitRule] = []
        super().__init__(
            self._parts.hostname,
            self._parts.port or _DEFAULT_PORT,
            tap=lambda: _PostgresTap(lambda: tuple(self._rules)),
        )

    @property
    def url(self) -> str:
        user, at, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{user}{at}{self.host}:{self.port}"))

    def cut_around_commit(
        self,
        matching: str | Callable[[str], bool] = r"(^|;)\s*commit\b",
        *,
        before: bool,
        count: int = 1,
        skip: int = 0,
    ) -> CommitRule:
        """Cut the connection around the next matching statement that commits: by itself, or as `commit`.

        `before` it reaches the server, so that nothing happens; or after the server has committed and answered, with
        the answer lost. `matching` is a regular expression or a function of the statement's text; the first `skip`
        statements pass, then `count` of them are cut, each with its own connection only.
        """
        pattern = re.compile(matching, re.IGNORECASE) if isinstance(matching, str) else None
        matches = matching if pattern is None else lambda statement: pattern.search(statement) is not None
        assert callable(matches)
        rule = CommitRule(matches, before=before, count=count, skip=skip)
        self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """End all faults and rules, and accept connections again."""
        for rule in self._rules:
            rule.end()
        self._rules.clear()
        super().heal()


class _PostgresTap(Tap):
    """One connection: its prepared statements, the awaited answer, and whether that one is to be lost."""

    def __init__(self, rules: Callable[[], tuple[CommitRule, ...]]) -> None:
        self._rules = rules
        self._client = _Stream()
        self._server = _Stream()
        self._has_begun = False
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        # Each answer ends with ReadyForQuery, which the server also sends once at the beginning.
        self._asked = 0
        self._answered = -1
        self._losing: CommitRule | None = None
        self._lost_answer = 0

    def from_client(self, data: bytes) -> TapVerdict:
        self._client.feed(data)
        forward = b""
        if not self._has_begun:
            startup = self._client.startup()
            if startup is None:
                return TapVerdict()
            code = int.from_bytes(startup[4:8])
            if code in _ENCRYPTION_REQUESTS:
                return TapVerdict(reply=b"N")
            self._has_begun = True
            forward = startup
        for message in self._client.messages():
            statement = self._executed(message)
            rule = None if statement is None else next((rule for rule in self._rules() if rule.takes(statement)), None)
            if rule is not None and rule.before:
                rule.has_cut()
                return TapVerdict(forward, end="cut")
            if rule is not None:
                self._losing, self._lost_answer = rule, self._asked + 1
            if message.kind in {b"Q", b"S", b"F"}:
                self._asked += 1
            forward += message.raw
        return TapVerdict(forward)

    def from_server(self, data: bytes) -> TapVerdict:
        self._server.feed(data)
        forward = b""
        for message in self._server.messages():
            if self._losing is None or self._answered + 1 < self._lost_answer:
                forward += message.raw
            if message.kind == b"Z":
                self._answered += 1
                if self._losing is not None and self._answered == self._lost_answer:
                    self._losing.has_cut()
                    return TapVerdict(forward, end="cut")
        return TapVerdict(forward)

    def _executed(self, message: _Message) -> str | None:
        """Return the text of the statement that a message executes, if any."""
        body = message.body
        match message.kind:
            case b"Q":
                return _text(body.rstrip(b"\0"))
            case b"P":
                name, text, _ = body.split(b"\0", 2)
                self._statements[name] = _text(text)
            case b"B":
                portal, name, _ = body.split(b"\0", 2)
                self._portals[portal] = self._statements.get(name, "")
            case b"E":
                return self._portals.get(body.split(b"\0", 1)[0], "")
            case _:
                pass
        return None


@dataclass(frozen=True)
class _Message:
    kind: bytes
    body: bytes
    raw: bytes


class _Stream:
    """Bytes of one direction, split into protocol messages."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def startup(self) -> bytes | None:
        """Return the first message of a client, which has a length but no kind; None if it is not complete."""
        if len(self._bytes) < 8:
            return None
        return self._taken(int.from_bytes(self._bytes[:4]))

    def messages(self) -> Iterator[_Message]:
        """Yield all complete messages that follow."""
        while len(self._bytes) >= 5:
            raw = self._taken(1 + int.from_bytes(self._bytes[1:5]))
            if raw is None:
                return
            yield _Message(raw[:1], raw[5:], raw)

    def _taken(self, length: int) -> bytes | None:
        if len(self._bytes) < length:
            return None
        taken, self._bytes = self._bytes[:length], self._bytes[length:]
        return taken


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
