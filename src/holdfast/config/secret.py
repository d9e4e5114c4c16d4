"""Secrets and addresses: hide passwords and tokens in a URL, and parse an address to listen on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

HIDDEN = "***"
_TOLD = 80

# From the first colon to the last @, so that no part of a password with an unquoted @ remains visible.
_PASSWORD = re.compile(r"://[^/?#:@]*:(?P<value>.*)@", re.DOTALL)
# Up to the next &: libpq has no fragments. It decodes the name, so `passwor%64` is a password too.
_OPTION = re.compile(r"[?&](?P<name>[^=&]*)=(?P<value>[^&]*)")
_SECRET = re.compile(r"password|passwd|secret|token", re.IGNORECASE)
# The form of libpq: `host=db password=secret`. There may be spaces around =, quotes around the value, and backslashes
# before characters that would end it.
_WORD = re.compile(
    r"(?<![?&\w%])\w*(?:password|passwd|secret|token)\w*\s*=\s*(?P<value>(?=\S)(?:'(?:[^'\\]|\\.)*'?)?(?:\\.|\S)*)",
    re.IGNORECASE | re.DOTALL,
)


def scrubbed(url: str) -> str:
    """Return a URL, or a connection string of libpq, with its password and all secret options hidden."""
    excerpt, end = "", 0
    for first, last in sorted(_secrets(url)):
        if first >= end:
            excerpt += url[end:first] + HIDDEN
        end = max(end, last)
    return excerpt + url[end:]


def _secrets(url: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each possible secret. The ranges may overlap."""
    for pattern in (_PASSWORD, _WORD):
        for found in pattern.finditer(url):
            yield found.span("value")
    for found in _OPTION.finditer(url):
        if _SECRET.search(unquote(found["name"])):
            yield found.span("value")


def excerpt(value: object) -> str:
    """Return a value for a message: shortened, and with the secrets of a URL hidden."""
    text = repr(scrubbed(value)) if isinstance(value, str) else scrubbed(repr(value))
    return text if len(text) <= _TOLD else f"{text[:_TOLD]}…"


DEFAULT_HOST = "127.0.0.1"

_LAST_PORT = 65_535


class Address(NamedTuple):
    """A host and a port to listen on."""

    host: str
    port: int

    @classmethod
    def parsed(cls, text: str) -> Address:
        """Parse `9464`, `:9464`, `0.0.0.0:9464` or `[::1]:9464`."""
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not port.isascii() or int(port) > _LAST_PORT:
            raise ValueError(f"expected PORT or HOST:PORT, such as 9464 or {DEFAULT_HOST}:9464")
        return cls(host.strip("[]") or DEFAULT_HOST, int(port))

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the address."""
        import ipaddress  # imported here, because `holdfast --help` does not need it

        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def for_process(self, number: int) -> Address:
        """Return the address of a worker process, numbered from 1. Each process listens one port higher.

        Port 0 stays 0: the system chooses a free port.
        """
        port = self.port + number - 1 if self.port else 0
        if port > _LAST_PORT:
            raise ValueError(f"{self}: there is no port {port} for worker process {number}; choose a lower one")
        return self._replace(port=port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
