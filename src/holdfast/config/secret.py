"""Secrets: what may be shown of a URL, or of a value that may have one in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

HIDDEN = "***"
_TOLD = 80

# From the first colon to the last @, so that nothing is left of a password that should have been quoted.
_PASSWORD = re.compile(r"://[^/?#:@]*:(?P<value>.*)@", re.DOTALL)
# Up to the next &: libpq knows no fragment. It decodes the name, so `passwor%64` is a password too.
_OPTION = re.compile(r"[?&](?P<name>[^=&]*)=(?P<value>[^&]*)")
_SECRET = re.compile(r"password|passwd|secret|token", re.IGNORECASE)
# As libpq writes it: `host=db password=secret`, perhaps with blanks around =, quotes around the value, and backslashes
# before what would end it.
_WORD = re.compile(
    r"(?<![?&\w%])\w*(?:password|passwd|secret|token)\w*\s*=\s*(?P<value>(?=\S)(?:'(?:[^'\\]|\\.)*'?)?(?:\\.|\S)*)",
    re.IGNORECASE | re.DOTALL,
)


def scrubbed(url: str) -> str:
    """A URL, or a connection string of libpq, without its password and without those among its options."""
    shown, end = "", 0
    for first, last in sorted(_secrets(url)):
        if first >= end:
            shown += url[end:first] + HIDDEN
        end = max(end, last)
    return shown + url[end:]


def _secrets(url: str) -> Iterator[tuple[int, int]]:
    """Where there may be a secret, from and to. All are sought in the same text, and may overlap."""
    for pattern in (_PASSWORD, _WORD):
        for found in pattern.finditer(url):
            yield found.span("value")
    for found in _OPTION.finditer(url):
        if _SECRET.search(unquote(found["name"])):
            yield found.span("value")


def told(value: object) -> str:
    """A value in a message: short, and without what a URL in it would give away."""
    text = repr(scrubbed(value)) if isinstance(value, str) else scrubbed(repr(value))
    return text if len(text) <= _TOLD else f"{text[:_TOLD]}…"
