"""Secrets: what may be shown of a URL."""

from __future__ import annotations

import re

HIDDEN = "***"

# From the first colon to the last @, so that nothing is left of a password that should have been quoted.
_PASSWORD = re.compile(r"(://[^/?#:@]*):.*@")
_OPTION = re.compile(r"([?&][^=&#]*(?:password|passwd|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE)


def scrubbed(url: str) -> str:
    """A URL without its password, and without those among its options."""
    return _OPTION.sub(rf"\g<1>{HIDDEN}", _PASSWORD.sub(rf"\g<1>:{HIDDEN}@", url))
