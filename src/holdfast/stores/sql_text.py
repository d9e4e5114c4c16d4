"""SQL texts with placeholders: a name in double braces stands for a constant of `core` or a shared setting."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def filled_in(text: str, known: Mapping[str, str]) -> str:
    """Replace each name in double braces with its value.

    Raises:
        KeyError: `known` has no value for a name.

    """
    return _PLACE.sub(lambda place: known[place[1]], text)
