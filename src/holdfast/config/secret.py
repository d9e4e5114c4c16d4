"""Secrets: what may be shown of a URL, or of a value that may have one in it."""

from __future__ import annotations

import re

HIDDEN = "***"
_TOLD = 80

# From the first colon to the last @, so that nothing is left of a password that should have been quoted.
_PASSWORD = re.compile(r"(://[^/?#:@]*):.*@")
_OPTION = re.compile(r"([?&][^=&#]*(?:password|passwd|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE)
# As libpq writes it: `host=db password=secret`, perhaps with blanks around = and quotes around the value.
_WORD = re.compile(
    r"((?<![?&\w%])\w*(?:password|passwd|secret|token)\w*\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|\S+)", re.IGNORECASE
)


def scrubbed(url: str) -> str:
    """A URL, or a connection string of libpq, without its password and without those among its options."""
    url = _OPTION.sub(rf"\g<1>{HIDDEN}", _PASSWORD.sub(rf"\g<1>:{HIDDEN}@", url))
    return _WORD.sub(rf"\g<1>{HIDDEN}", url)


def told(value: object) -> str:
    """A value in a message: short, and without what a URL in it would give away."""
    text = repr(scrubbed(value)) if isinstance(value, str) else scrubbed(repr(value))
    return text if len(text) <= _TOLD else f"{text[:_TOLD]}…"
