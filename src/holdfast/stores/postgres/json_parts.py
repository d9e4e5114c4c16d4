"""The parts of a JSON text, split by brackets and commas alone, so that an invalid part does not hide the others.

A decoder validates every part, even those that it returns undecoded. So it refuses a whole text because of half a
surrogate pair, or too many nested brackets, in one row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_MEMBER = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:(.*)', re.DOTALL)


def items(text: str) -> list[str]:
    """Return the texts of a list's items; none if the text is `null`."""
    return list(_parts(text))


def members(text: str) -> dict[str, str]:
    """Return the texts of an object's values, by name."""
    found = (_MEMBER.fullmatch(part) for part in _parts(text))
    return {msgspec.json.decode(member[1], type=str): member[2].strip() for member in found if member is not None}


def _parts(text: str) -> Iterator[str]:
    depth = start = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "[" | "{":
                depth += 1
                if depth == 1:
                    start = token.end()
            case "]" | "}":
                depth -= 1
                if depth == 0:
                    if last := text[start : token.start()].strip():
                        yield last
                    return
            case "," if depth == 1:
                yield text[start : token.start()].strip()
                start = token.end()
            case _:
                pass
