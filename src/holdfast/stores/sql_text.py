"""SQL texts: names in double braces stand for constants of `core` and for shared settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def filled_in(text: str, known: Mapping[str, str]) -> str:
    """A text with what its names in double braces stand for.

    Raises:
        KeyError: A name is unknown.

    """
    return _PLACE.sub(lambda place: known[place[1]], text)
