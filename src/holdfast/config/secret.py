"""Secrets: hide passwords and tokens in a URL, or in a value that may contain one."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
